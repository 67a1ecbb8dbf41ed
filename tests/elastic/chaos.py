"""A campaign against elastic jobs: faults of all kinds (rounds.py), judged by oracles.

    python -m tests.elastic.chaos --records FILE             all rounds of the plan that FILE does not have yet
    python -m tests.elastic.chaos --kind random --seed 3     one round
    python -m tests.elastic.chaos --records FILE --page docs/concepts/membership.md    write its table into a page

Every round ends with four oracles: the ledger of samples, a weight per sample that counts its uses (after every epoch),
equal bits of all members after every commit, and in deterministic mode the final bits of one undisturbed worker. FILE
has a line of JSON per round.
"""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from paceline.elastic.presence import ElasticPresence
from paceline.measure.busy import watched_machine
from tests.elastic import crew as crew_module
from tests.elastic.crew import DETERMINISTIC, FAST, Crew, warm_up
from tests.elastic.rounds import KINDS, fight

MODES = {"deterministic": DETERMINISTIC, "fast": FAST}
COMMS = ("shm", "tcp")
EACH = {"points": 1, "random": 3, "collapse": 1, "coordinator": 1, "freeze": 1, "patience": 1, "slow": 1, "resume": 1}
LONG = (("shm", "deterministic"),)
BEGIN, END = "<!-- chaos: from docs/records/chaos/rounds.jsonl -->", "<!-- chaos: end -->"
ORDER = ("kill", "stop", "leave", "join", "coordinator", "kill everything")
BATCH = 400  # steps that the undisturbed worker makes at a time


def plan():
    """Return kind, comm, mode and seed of all rounds of the campaign."""
    rounds = [
        (kind, comm, mode, seed)
        for kind, count in EACH.items()
        for comm in COMMS
        for mode in MODES
        for seed in range(1, count + 1)
    ]
    return [*rounds, *(("long", comm, mode, 1) for comm, mode in LONG)]


class Undisturbed:
    """The bits of one worker that nobody disturbs, after every step."""

    def __init__(self):
        self._bits = {}

    def after(self, steps):
        if steps not in self._bits:
            epochs = -(-max(steps, BATCH) // -(-crew_module.SAMPLES // crew_module.GLOBAL))
            crew = Crew(1, DETERMINISTIC, pause=0.0, epochs=epochs)
            try:
                crew.coordinate()
                crew.add()
                crew.finish(seconds=1200.0)
                self._bits |= {line["step"] + 1: line["hash"] for line in crew.lines("commit")}
            finally:
                crew.close()
        return self._bits[steps]


def play(kind, comm, mode, seed, undisturbed):
    """Play one round; return its record."""
    crew_module.COMM = comm
    began = time.monotonic()
    with watched_machine() as machine:
        try:
            result = fight(kind, MODES[mode], f"{kind} {comm} {mode} {seed}")
        except Exception as problem:
            result = {"failed": repr(problem), "faults": []}
    part, took = machine.part(), time.monotonic() - began
    wrong = problems_of(result, undisturbed if mode == "deterministic" else None)
    kept = {name: result.get(name) for name in ("steps", "generations", "goodput", "faults")}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    others = round(part.get("other_cores", 0.0) / part["cores"], 3)
    record = {"kind": kind, "comm": comm, "mode": mode, "seed": seed, "when": when, "took": round(took, 1)}
    return {**record, "others": others, "wrong": wrong, **kept}


def problems_of(result, undisturbed):
    """Return the oracles that a round does not satisfy, and what else was wrong."""
    if "failed" in result:
        return [result["failed"]]
    wrong = result["wrong"] + [name for name in ("ledger", "counts", "replicas") if not result[name]]
    wrong += ["exit codes"] if set(result["codes"]) - {0} else []
    if undisturbed is not None and not wrong and result["hash"] != [undisturbed.after(result["steps"])]:
        wrong.append("same bits")
    return wrong


# the records ----------------------------------------------------------------------------------------


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(record):
    return record["kind"], record["comm"], record["mode"], record["seed"]


def table(records):
    """Return a table in Markdown: kinds of faults with their number, and seconds to the next commit."""
    lines = ["| fault | number | timed | p50 | p95 | longest |", "|---|---|---|---|---|---|"]
    for kind in ORDER:
        every = [fault["seconds"] for record in records for fault in record["faults"] if fault["kind"] == kind]
        timed = sorted(seconds for seconds in every if seconds is not None)
        cells = [f"{at(timed, part):.2f}" for part in (0.5, 0.95, 1.0)] if timed else ["", "", ""]
        lines.append(f"| {kind} | {len(every)} | {len(timed)} | {' | '.join(cells)} |")
    return lines


def at(values, part):
    return values[min(len(values) - 1, int(part * len(values)))]


def summary(records):
    """Return the text of a page: how many faults, what the oracles say, and the table."""
    faults, failed = sum(len(record["faults"]) for record in records), sum(bool(record["wrong"]) for record in records)
    others = sorted(record["others"] for record in records)
    hours, steps = sum(record["took"] for record in records) / 3600, sum(r["steps"] or 0 for r in records)
    held = f"in all {len(records)}" if not failed else f"in {len(records) - failed} of {len(records)}"
    first = [
        f"{faults:,} faults in {len(records)} jobs, {steps:,} steps, {hours:.1f} hours: all oracles hold {held} jobs.",
        "Seconds to the next commit, **on two cores that other work used at the same time**",
        f"(it had {100 * median(others):.0f} % of them in the median job, and {100 * others[-1]:.0f} % at most):",
    ]
    lines = [*first, "", *table(records)]
    more = [*coordinator_lines(records), *freeze_lines(records), *long_lines(records)]
    return [*lines, "", *more] if more else lines


def faults_of(records, kind):
    return [fault for record in records if record["kind"] == kind for fault in record["faults"]]


def coordinator_lines(records):
    found = [fault for fault in faults_of(records, "coordinator") if fault["kind"] == "coordinator"]
    without = [fault["seconds"] for fault in found if not fault["alone"]]
    if not without:
        return []
    lines = [
        f"- A coordinator that was away for a second while a worker died: the next commit came {min(without):.2f} to",
        f"  {max(without):.2f} s after its restart ({len(without)} times).",
    ]
    meanwhile = [fault["meanwhile"] for fault in found if fault["alone"] and "meanwhile" in fault]
    if meanwhile:
        lines[-1] += f" If nobody died, members made {min(meanwhile)} to {max(meanwhile)}"
        lines += [f"  commits without it ({len(meanwhile)} times)."]
    return lines


def freeze_lines(records):
    found = faults_of(records, "freeze")
    if not found:
        return []
    evicted, back = (sorted(fault[name] for fault in found) for name in ("evicted", "back"))
    return [
        f"- {len(found)} workers were frozen for 10 s: evicted after {evicted[0]:.2f} to {evicted[-1]:.2f} s;",
        f"  they committed again {back[0]:.2f} to {back[-1]:.2f} s after they woke up.",
    ]


def long_lines(records):
    return [
        f"- {record['took'] / 60:.0f} minutes of kills and joins over {record['comm']}, {record['mode']}: "
        f"{len(record['faults'])} faults, goodput {100 * record['goodput']:.1f} %."
        for record in records
        if record["kind"] == "long"
    ]


def write_page(path, records):
    """Replace what stands between the marks of a page."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(before + "\n".join([BEGIN, "", *summary(records), "", END]) + after)


def careless():
    """Let members apply steps without a verdict."""
    leave = ElasticPresence.leave
    ElasticPresence.leave = lambda presence, **how: bool(leave(presence, **how) or True)
    ElasticPresence.ended = lambda presence: False  # so that members meet a death where they wait for the sum


def main():
    parser = argparse.ArgumentParser(prog="tests.elastic.chaos")
    parser.add_argument("--records", type=Path, help="a file with a line per round; rounds that it has are left out")
    parser.add_argument("--kind", action="append", choices=tuple(KINDS))
    parser.add_argument("--comm", action="append", choices=COMMS)
    parser.add_argument("--mode", action="append", choices=tuple(MODES))
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no round after this time")
    parser.add_argument("--page", type=Path, help="write the table of the records into this page, and play nothing")
    parser.add_argument("--careless", action="store_true", help="apply steps without a verdict: must be noticed")
    chosen = parser.parse_args()
    known = read(chosen.records) if chosen.records else []
    if chosen.page:
        write_page(chosen.page, known)
        return
    torch.set_num_threads(1)
    warm_up()
    undisturbed = Undisturbed()
    if chosen.careless:
        careless()
    done, failed, limit = set(map(key, known)), 0, time.monotonic() + 60 * chosen.minutes
    for kind, comm, mode, seed in plan():
        wanted = ((chosen.kind, kind), (chosen.comm, comm), (chosen.mode, mode), (chosen.seed, seed))
        if (kind, comm, mode, seed) in done or any(names and name not in names for names, name in wanted):
            continue
        if time.monotonic() > limit:
            break
        record = play(kind, comm, mode, seed, undisturbed)
        known.append(record)
        failed += bool(record["wrong"])
        if chosen.records:
            chosen.records.parent.mkdir(parents=True, exist_ok=True)
            with chosen.records.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
        said = ", ".join(record["wrong"]) or "all oracles hold"
        faults = f"{len(record['faults'])} faults in {record['took']:.0f} s"
        print(f"{kind} {comm} {mode} {seed}: {faults}, {said}", flush=True)
    print(*summary(known) if known else ["nothing to do"], sep="\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
