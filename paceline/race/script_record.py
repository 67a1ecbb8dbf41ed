"""Records of a user's script: its command, its settings, and the figures that its ranks have left.

command line   ->   choices   ->   join, wrap in every rank   ->   steps-K.json   ->   record
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cluster.environment import capture
from paceline.errors import WrongCommand
from paceline.measure.busy import Usage
from paceline.measure.combining import UPDATES, make_record
from paceline.measure.meter import PARTS
from paceline.measure.periods import period_of
from paceline.measure.record.rank_report import RankReport, read_report
from paceline.measure.record.record import Record
from paceline.run.run import TO_LAUNCHER, TO_SCRIPTS, Run, flag_of

TAKEN = (*TO_SCRIPTS, *TO_LAUNCHER)  # settings of a run of a script, besides its workers; the script decides the rest
INTERPRETERS = ("python", "bash", "sh")
BLOCKS = 5  # blocks of updates in one start, each with its own rate


def settings_of(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings among `names` that differ from their default."""
    return {name: value for name in names if (value := getattr(run, name)) != Run.model_fields[name].default}


def command_of(argv: Sequence[str], run: Run, chosen: Collection[str] = ()) -> str:
    """Return the command that starts a script with the settings of a run; it names `chosen` ones even if default."""
    words = ["paceline", "run", "-np", str(run.workers)]
    changed = settings_of(run, TAKEN)
    for name in TAKEN:
        value = getattr(run, name)
        if name in changed or (name in chosen and value is not None):
            words += [flag_of(name), str(value)]
    return shlex.join([*words, "--", *argv])


def run_of(argv: Sequence[str], run: Run, batch: int | None = None) -> Run:
    """Return the run for the record, with the script's command in place of the model."""
    return run.with_(model=shlex.join(argv), batch_size=batch)


def script_of(record: Record) -> list[str]:
    """Return the script of a record, or nothing if the record is not of a script."""
    words = _words(record)
    return words[words.index("--") + 1 :] if "--" in words else []


def work_of(record: Record) -> str:
    """Return what a run trained in few letters: its model, or the name of its script without interpreter and folder."""
    words = script_of(record)
    if not words:
        return record.run.model
    first = Path(words[0]).name
    files = [word for word in words[1:] if not word.startswith("-")] if first.startswith(INTERPRETERS) else []
    return Path(files[0]).name if files else first


def launched_by(record: Record) -> tuple[Run, dict[str, Any]]:
    """Return the run that the launcher of a recorded script had, and the choices that it passed on to the script.

    The run in the record also has the script's own strategy, which the script will choose again. In older races the
    command was that of a whole race, and the record has the choices.
    """
    words = _words(record)
    if words[:3] == ["paceline", "run", "-np"]:
        flags = {flag_of(name): name for name in TAKEN}
        pairs = zip(words[4 : words.index("--") : 2], words[5 : words.index("--") : 2], strict=True)
        values = {flags[flag]: value for flag, value in pairs if flag in flags}
        run = Run.model_validate({"workers": words[3], **values})
        return run, {name: getattr(run, name) for name in values if name in TO_SCRIPTS}
    kept = {name: getattr(record.run, name) for name in ("workers", *TAKEN)}
    run = Run.model_validate(kept)
    return run, settings_of(run, TO_SCRIPTS)


def _words(record: Record) -> list[str]:
    try:
        return shlex.split(record.text)
    except ValueError:
        return []


def record_of(argv: Sequence[str], run: Run, folder: Path, usage: Usage, chosen: Collection[str] = ()) -> Record:
    """Make the record of a script that has ended, from what its ranks left in the folder of the job."""
    ranks = [_seen(folder, rank, argv) for rank in range(run.workers)]
    used = run.with_(**ranks[0].settings)
    count, period = min(len(rank.steps) for rank in ranks), period_of(used)
    ranks = [_in_blocks(rank, count, period) for rank in ranks]
    changes: Mapping[str, Any] = {
        "run": run_of(argv, used, ranks[0].batch or None),
        "text": command_of(argv, run, chosen),
        "busy": usage.part(ranks),
    }
    return make_record(used, [], ranks).model_copy(update=changes)


def _seen(folder: Path, rank: int, argv: Sequence[str]) -> RankReport:
    try:
        return read_report(folder / f"steps-{rank}.json")
    except OSError:
        raise WrongCommand(
            f"{shlex.join(argv)} measured nothing",
            why=f"rank {rank} left no times: it has not called pace.step(), or ended without an orderly exit",
            remedy="pace = paceline.wrap(model, optimizer), and pace.step() in the loop",
        ) from None


def _in_blocks(rank: RankReport, count: int, period: int = 1) -> RankReport:
    """Split the updates of a loop into warm-up and blocks of equal length."""
    warm = min(5, count // 3)
    blocks, length = _cut(count - warm, period)
    stop = warm + blocks * length
    steps = rank.steps[warm:stop]
    parts = {name: rank.parts.get(name, [0.0] * stop)[warm:stop] for name in PARTS}
    seconds = [sum(steps[k * length : (k + 1) * length]) for k in range(blocks)]
    return replace(
        rank,
        environment=capture(),
        warmup=rank.steps[:warm],
        steps=steps,
        seconds=seconds,
        parts=parts,
        samples=(rank.batch or 1) * length,
        unit="sample" if rank.batch else UPDATES,
    )


def _cut(count: int, period: int) -> tuple[int, int]:
    """Return the number of blocks and their length, in whole periods of a rule."""
    periods = count // period
    if period == 1 or not periods:
        blocks = max(1, min(BLOCKS, count // 2))
        return blocks, count // blocks
    blocks = max(range(min(2, periods), min(BLOCKS, periods) + 1), key=lambda n: (n * (periods // n), n))
    return blocks, periods // blocks * period
