"""Judge an elastic job by what its members wrote down (train/ledger.py) and by its journal.

    once       every step is committed in one generation, which computed each of its shards once
    replicas   all members have the same bits after every commit
    same       the bits at the end are those of a run without faults (deterministic mode only)

Commits that a rollback has withdrawn do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Judgement:
    """`problems` is empty if all oracles hold. Goodput is the share of computed shards that were committed."""

    problems: tuple[str, ...]
    steps: int
    goodput: float
    last: frozenset[str]  # the bits after the last commit


def read_ledger(folder: Path) -> list[Line]:
    """Return the lines of all members. The last line of a member that was killed may be torn."""
    lines = []
    for path in sorted(folder.glob("ledger-*.jsonl")):
        for text in path.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
    return lines


def judge(lines: Iterable[Line], rollbacks: Sequence[tuple[int, int, int]] = ()) -> Judgement:
    """Judge the lines of a job. `rollbacks` are generation, steps before and steps after, from its journal."""
    commits: dict[int, set[int]] = {}
    bits: dict[int, set[str]] = {}
    shards: dict[tuple[int, int], list[int]] = {}
    for line in lines:
        step, generation = int(line["step"]), int(line["generation"])
        if line["what"] == "shard":
            shards.setdefault((step, generation), []).append(int(line["shard"]))
        elif not _withdrawn(step, generation, rollbacks):
            commits.setdefault(step, set()).add(generation)
            bits.setdefault(step, set()).add(str(line["hash"]))
    steps = max(commits, default=-1) + 1
    problems = (*_not_once(commits, shards, steps), *_not_alike(bits))
    computed = sum(map(len, shards.values()))
    committed = sum(len(shards.get((step, min(groups)), ())) for step, groups in commits.items())
    return Judgement(problems, steps, committed / computed if computed else 0.0, frozenset(bits.get(steps - 1, ())))


def uses(lines: Iterable[Line], rollbacks: Sequence[tuple[int, int, int]], steps: int) -> tuple[int, int]:
    """Return how many shards of `steps` steps no commit has used, and how many uses come after the first one."""
    shards: dict[tuple[int, int], list[int]] = {}
    commits: dict[int, set[int]] = {}
    for line in lines:
        step, generation = int(line["step"]), int(line["generation"])
        if line["what"] == "shard":
            shards.setdefault((step, generation), []).append(int(line["shard"]))
        elif not _withdrawn(step, generation, rollbacks):
            commits.setdefault(step, set()).add(generation)
    total = max((shard for known in shards.values() for shard in known), default=-1) + 1
    lost = repeated = 0
    for step in range(steps):
        used = [shard for generation in commits.get(step, ()) for shard in shards.get((step, generation), ())]
        lost += total - len(set(used))
        repeated += len(used) - len(set(used))
    return lost, repeated


def _withdrawn(step: int, generation: int, rollbacks: Sequence[tuple[int, int, int]]) -> bool:
    return any(generation < later and step >= after for later, _, after in rollbacks)


def _not_once(commits: dict[int, set[int]], shards: dict[tuple[int, int], list[int]], steps: int) -> Iterator[str]:
    if not steps:
        yield "no step was committed"
    total = max((shard for known in shards.values() for shard in known), default=-1) + 1
    for step in range(steps):
        groups = commits.get(step, set())
        if len(groups) != 1:
            yield f"step {step} was committed in {len(groups)} generations"
        elif sorted(shards.get((step, min(groups)), ())) != list(range(total)):
            yield f"step {step} was committed with shards {sorted(shards.get((step, min(groups)), ()))} of {total}"


def _not_alike(bits: dict[int, set[str]]) -> Iterator[str]:
    for step, seen in sorted(bits.items()):
        if len(seen) > 1:
            yield f"members have {len(seen)} different states after step {step}"
