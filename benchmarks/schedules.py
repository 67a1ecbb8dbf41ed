"""Schedules and compressors on shaped links: step time and exposed communication, beside DDP, in one run.

Four hosts of a lab at 1 Gbit/s. Compute is replayed after profiles of resnet50 and bert_base, with times scaled to
the point where one all-reduce takes as long as forward and backward together; a second point, with a quarter of
that, has communication dominate. Contenders start anew in every round, interleaved. Exposed is a step minus the
step of `limit`, which waits for the same compute and sends nothing. One row has real compute. Needs root.

    python benchmarks/schedules.py [--quick] [--only resnet50] [--contenders mgwfbp dear] [--rounds 5] [--json F]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import show, verdict

from paceline.cli.show import plus_minus
from paceline.cluster.lab.lab import Lab
from paceline.cluster.lab.network import Network
from paceline.errors import PacelineError
from paceline.measure.measure import measure
from paceline.measure.stats.intervals import Interval, mean_interval, ratio_interval
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.workload.profile import StepProfile, read

PROFILES = Path(__file__).with_name("profiles")
FIXED = ("bsp", "fusion(5)", "fusion(25)", "fusion(100)", "wfbp")
# A name, and what it sets; those that this paceline does not have are left out and named.
CONTENDERS: dict[str, dict[str, str]] = {
    "limit": {"strategy": "limit"},
    "ddp": {"strategy": "ddp"},
    "bsp": {"schedule": "bsp"},
    "fusion(5)": {"schedule": "fusion(mb=5)"},
    "fusion(25)": {"schedule": "fusion(mb=25)"},
    "fusion(100)": {"schedule": "fusion(mb=100)"},
    "wfbp": {"schedule": "wfbp"},
    "mgwfbp": {"schedule": "mgwfbp"},
    "priority": {"schedule": "priority"},
    "dear": {"schedule": "dear"},
    "topk 1 %": {"compress": "feedback(topk(ratio=0.01))"},
    "sign": {"compress": "sign"},
}
QUICK = ("limit", "ddp", "fusion(25)", "wfbp", "mgwfbp", "dear", "topk 1 %")
ALWAYS = ("limit", "ddp", "fusion(25)")  # what the tables and the verdicts compare with
DOMINATED = ("limit", "ddp", "fusion(25)", "topk 1 %", "sign")
GOODPUT = 0.956  # of the rate, what TCP leaves
LEAST = 3  # steps whose median is that of a step in the middle


@dataclass(frozen=True)
class Case:
    """One table: the same run for every contender."""

    title: str
    base: Run
    contenders: tuple[str, ...]


def all_reduce_seconds(profile: StepProfile, lab: Lab) -> float:
    """A ring's bytes over the goodput of one link."""
    nbytes = sum(tensor.numel for tensor in profile.layout) * profile.itemsize
    return 2 * (lab.hosts - 1) / lab.hosts * nbytes / (GOODPUT * lab.bytes_per_second)


def base_of(run: Run, steps: int) -> Run:
    return run.with_(steps=steps, repeats=1, warmup=2, threads=1, optimizer="sgd(lr=0.001)", deadline=600)


def replayed_cases(name: str, lab: Lab, steps: int, quick: bool) -> list[Case]:
    path = PROFILES / f"{name}.json"
    profile = read(path)
    compute, sending = profile.forward_seconds + profile.backward, all_reduce_seconds(profile, lab)
    scale = sending / compute
    print(f"{name}: forward and backward {compute:.2f} s, all-reduce {sending:.2f} s at {lab}: scale {scale:.4f}")

    def case(title: str, factor: float, contenders: tuple[str, ...]) -> Case:
        run = Run(
            workers=lab.hosts,
            lab=str(lab),
            model=profile.model,
            batch_size=profile.batch_size,
            compute=f"replay({path}, scale={factor:.6g})",
        )
        return Case(f"{name}, {title}", base_of(run, steps), contenders)

    balanced = case(f"replayed x {scale:.4f}: communication = compute", scale, QUICK if quick else tuple(CONTENDERS))
    dominated = case(f"replayed x {scale / 4:.4f}: communication = 4 x compute", scale / 4, DOMINATED)
    return [balanced] if quick else [balanced, dominated]


def real_case(bandwidth: str, steps: int) -> Case:
    lab = Lab(2, bandwidth)
    run = Run(workers=2, lab=str(lab), model="mobilenet_v2", image_size=32, batch_size=64)
    return Case(f"mobilenet_v2, real compute, {lab}", base_of(run, steps), tuple(CONTENDERS))


def present(case: Case, only: Sequence[str] | None) -> dict[str, Run]:
    """The contenders that were asked for and that this paceline has."""
    found = {}
    for name in case.contenders:
        if only and name not in (*only, *ALWAYS):
            continue
        run = case.base.with_(**CONTENDERS[name])
        try:
            compose(run)
        except PacelineError as problem:
            print(f"left out: {name} ({str(problem).splitlines()[0]})")
            continue
        found[name] = run
    return found


def race(case: Case, rounds: int, only: Sequence[str] | None) -> dict[str, list[float]]:
    """Median seconds of a step, of every contender in every round."""
    runs = present(case, only)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    flops = None  # of one sample: counted once
    for number in range(rounds):
        for name, run in runs.items():
            record, _ = measure(run, on_line=lambda *_: None, flops=flops, watched=0)
            flops = record.resources["flops"]["per_sample"]
            seconds[name].append(record.step["median"])
            print(f"  round {number + 1}/{rounds}  {name:12} {seconds[name][-1] * 1e3:9.1f} ms", flush=True)
    return seconds


def table(case: Case, seconds: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    rows, found = [], []
    for name, values in seconds.items():
        exposed = [value - least for value, least in zip(values, seconds["limit"], strict=True)]
        step, apart, ratio = mean_interval(values), mean_interval(exposed), ratio_interval(seconds["ddp"], values)
        rows.append((name, milliseconds(step), milliseconds(apart), plus_minus(ratio, 3)))
        found.append({"name": name, "step": vars(step), "exposed": vars(apart), "of_ddp": vars(ratio)})
    print(f"\n{case.title}")
    show(("contender", "step ms", "exposed ms", "times ddp"), rows)
    print()
    return found


def milliseconds(interval: Interval) -> str:
    sides = (None if side is None else 1e3 * side for side in (interval.low, interval.high))
    return plus_minus(Interval(1e3 * interval.centre, *sides), 0)


def faster(seconds: Mapping[str, list[float]], name: str, than: str) -> float:
    return ratio_interval(seconds[than], seconds[name]).centre


def balanced_verdicts(label: str, seconds: Mapping[str, list[float]]) -> list[str]:
    lines = []
    for other in (*FIXED, "ddp"):
        if "mgwfbp" in seconds and other in seconds:
            lines.append(verdict(f"{label}: mgwfbp, times {other}", faster(seconds, "mgwfbp", other), 1.0))
    crossing = [name for name in ("priority", "dear") if name in seconds]
    if crossing:
        best = max(faster(seconds, name, "ddp") for name in crossing)
        lines.append(verdict(f"{label}: {' or '.join(crossing)}, times ddp", best, 1.10))
    return lines


def dominated_verdicts(label: str, seconds: Mapping[str, list[float]]) -> list[str]:
    chosen = [name for name in ("topk 1 %", "sign") if name in seconds]
    return [verdict(f"{label}: {n}, times fusion(25)", faster(seconds, n, "fusion(25)"), 3.0) for n in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only models whose name contains this")
    parser.add_argument("--contenders", nargs="+", help="only these, beside limit, ddp and fusion(25)")
    parser.add_argument("--bandwidth", default="1gbit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="resnet50, one round; figures, not evidence")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.steps < LEAST:
        parser.error(
            f"--steps {asked.steps}: where communication crosses the step, the first one ends early and the last late"
        )
    lab = Lab(4, asked.bandwidth)
    with Network(lab) as network:
        shares = [f"{100 * rate / lab.bytes_per_second:.1f} %" for rate in network.goodput()]
    print(f"{lab}: goodput of the hosts is {', '.join(shares)} of the rate")
    rounds, steps = (1, 3) if asked.quick else (asked.rounds, asked.steps)
    names = [n for n in ("resnet50", "bert_base") if (not asked.only or asked.only in n)]
    everything, lines = [], []
    for name in names[:1] if asked.quick else names:
        for case in replayed_cases(name, lab, steps, asked.quick):
            seconds = race(case, rounds, asked.contenders)
            everything.append({"title": case.title, "rows": table(case, seconds)})
            judge = dominated_verdicts if case.contenders == DOMINATED else balanced_verdicts
            lines += judge(name, seconds)
    if not asked.quick and (not asked.only or asked.only in "mobilenet_v2"):
        case = real_case(asked.bandwidth, steps)
        everything.append({"title": case.title, "rows": table(case, race(case, rounds, asked.contenders))})
    for line in lines:
        print(line)
    if asked.json:
        asked.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
