"""Between hosts of a lab, the network rounds of `hierarchical` over gloo run while backward still computes.

    rank 0   ready ready ready ready ready          backward: replayed, so that waits leave the cores free
             leave chunk 0 ---- arrived             inside the host, between hosts, inside the host
                         leave chunk 1 ---- arrived

A chunk that arrived before the last gradient was ready has crossed the slow link during backward.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline.measure.record.events import read_events

pytestmark = [pytest.mark.root, pytest.mark.multi, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
BANDWIDTH = 50e6  # bytes per second of a link, 400 Mbit/s
CLUSTER = ["-np", "4", "--lab", "lab(hosts=2, bandwidth=400mbit)", "--comm", "gloo", "--exchange", "hierarchical"]
# 14 MB: they need 0.28 s on the link, and backward takes 0.6 s
WORK = ["--model", "mobilenet_v2", "--batch-size", "4", "--compute", "replay(mobilenet_v2, step=0.9)"]
LENGTH = ["--steps", "2", "--repeats", "1", "--warmup", "1"]

# A control: later rounds start only when they are waited for. The first round still leaves in backward.
WAITING = """
from paceline.strategy.exchanges._works import Chain
Chain.advance = lambda self, limit=None: 1
"""


@dataclass(frozen=True)
class Overlap:
    """What one rank shows of one step."""

    left: int  # chunks that left before the last gradient was ready
    share: float  # bytes that arrived before the last gradient was ready, of all bytes
    rate: float  # the largest rate of such a chunk from leaving to arriving, in bytes per second

    def __str__(self):
        return f"{self.left} chunks left and {self.share:.0%} of the bytes arrived in backward"


def overlaps(events, nbytes):
    """Return the overlap of every step of a rank."""
    found = []
    for step in sorted({event[2] for event in events if event[1] == "ready"}):
        of_step = [event for event in events if event[2] == step]
        computed = max(seconds for seconds, kind, *_ in of_step if kind == "ready")
        leave = {what: seconds for seconds, kind, _, what, _ in of_step if kind == "leave"}
        back = {what: seconds for seconds, kind, _, what, _ in of_step if kind in ("arrived", "back")}
        assert leave.keys() == back.keys() == set(range(len(nbytes)))
        early = [chunk for chunk, seconds in back.items() if seconds < computed]
        found.append(
            Overlap(
                sum(seconds < computed for seconds in leave.values()),
                sum(nbytes[chunk] for chunk in early) / sum(nbytes),
                max((nbytes[chunk] / (back[chunk] - leave[chunk]) for chunk in early), default=0.0),
            )
        )
    return found


def run(folder, schedule, code=""):
    """Train in a lab. Return the overlap of every step of every rank, and print it."""
    (folder / "sitecustomize.py").write_text(code)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    words = [*CLUSTER, *WORK, *LENGTH, "--schedule", schedule, "--json", str(folder / "r.json")]
    command = [sys.executable, "-m", "paceline", "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((folder / "r.json").read_text())
    assert (record["comm"], record["plan"]["schedule"]) == ("gloo", schedule)
    ranks = read_events(folder / record["events"])
    assert len(ranks) == 4
    found = [overlaps(events, record["plan"]["nbytes"]) for events in ranks]
    print(f"{schedule}: {1e3 * record['breakdown']['exposed']:.0f} ms of a step exposed")
    for rank, steps in enumerate(found):
        print(f"  rank {rank}:", "; ".join(map(str, steps)))
    return [overlap for steps in found for overlap in steps]


def test_network_rounds_of_hierarchical_over_gloo_overlap_backward(tmp_path):
    found = run(tmp_path, "fusion(mb=1)")
    assert len(found) >= 8
    # Backward is twice as long as all bytes need. A quarter leaves room for a machine that is busy.
    assert min(overlap.share for overlap in found) > 0.25
    # The bytes of a chunk cross the link once in each direction, so none arrives faster than the link allows. A
    # token bucket of 32 kB at both ends lets a chunk of 1 MB be a little faster.
    assert max(overlap.rate for overlap in found) < 1.1 * BANDWIDTH


def test_with_one_chunk_nothing_overlaps(tmp_path):
    """A negative control of the test above."""
    found = run(tmp_path, "bsp")
    assert len(found) >= 8
    assert {(overlap.left, overlap.share) for overlap in found} == {(0, 0.0)}


def test_rounds_that_start_when_they_are_waited_for_do_not_overlap(tmp_path):
    """A negative control: chunks leave in backward as before, but none crosses the network there."""
    found = run(tmp_path, "fusion(mb=1)", WAITING)
    assert min(overlap.left for overlap in found) > 1
    assert max(overlap.share for overlap in found) == 0.0
