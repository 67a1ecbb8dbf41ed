"""Later rounds of an exchange start by themselves, in one order on all ranks."""

import math
import random
import time

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.engine.engine import Engine
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy.compressors.none import NoCompression
from paceline.strategy.exchanges._works import Chain
from paceline.train.pace import Pace
from paceline.types import Lane, View


def engine_of(comm, exchange, tensors=6):
    rule, nodes = ("atc", "2x2") if "neighbor" in exchange else ("grad", None)
    axes = compose(Run(exchange=exchange, schedule="wfbp", rule=rule, workers=comm.size, nodes=nodes)).axes
    likes = [torch.zeros(100 + k) for k in range(tensors)]
    engine = Engine(
        [f"tensor {k}" for k in range(tensors)],
        likes,
        exchange=axes.exchange,
        schedule=axes.schedule,
        compressor=NoCompression(),
        device=CpuDevice(),
        clock=time.perf_counter,
        lane=Lane("gradients", True, False),
    )
    engine.enter(comm, View(comm.rank, comm.size, (0, 0, 1, 1) * (comm.size // 4)))
    return engine


def fill(engine, rank, step):
    for slot in range(len(engine.order)):
        engine.source(slot).fill_(rank + 10 * step + slot)


def rounds_before_waiting(comm, exchange):
    """Rounds of the first chunk that had started before anybody waited, in the second step."""
    engine, started = engine_of(comm, exchange), 0
    for step in range(2):
        engine.begin(step)
        fill(engine, comm.rank, step)
        for slot in range(len(engine.order)):
            engine.offer(slot)
        for _ in range(8):
            comm.barrier()  # everybody has done what could be done; now there is more
            engine.advance()
        work = engine._flying[0][1]
        started = math.inf if work.done() else work._started
        comm.barrier()
        engine.finish()
    return started


@pytest.mark.parametrize("exchange", ["hierarchical(2x2)", "hierarchical(neighbor(ring))"])
def test_later_rounds_go_on_before_anybody_waits(exchange):
    found = run_ranks(4, lambda comm: rounds_before_waiting(comm, exchange))
    assert found == [math.inf] * 4, "all rounds of the first chunk were through"


def test_rounds_that_share_a_comm_wait_to_be_waited_for(monkeypatch):
    """The control: without comms of their own, rounds start only inside wait()."""
    monkeypatch.setattr(Chain, "advance", lambda self, limit=math.inf: 1)
    assert run_ranks(4, lambda comm: rounds_before_waiting(comm, "hierarchical(2x2)")) == [1] * 4


def test_sums_are_right_whatever_the_pace_of_ranks():
    def work(comm):
        engine, dice = engine_of(comm, "hierarchical(2x2x2)", 12), random.Random(comm.rank)
        for step in range(12):
            engine.begin(step)
            fill(engine, comm.rank, step)
            for slot in range(len(engine.order)):
                engine.offer(slot)
                for _ in range(dice.randrange(4)):
                    engine.advance()
                    time.sleep(dice.random() * 1e-4)
            engine.finish()
            for slot, view in enumerate(engine.arenas[0].result_views):
                assert view.unique().tolist() == [sum(rank + 10 * step + slot for rank in range(8))]

    run_ranks(8, work)


def test_no_chunk_overtakes_the_one_before_it():
    """Calls of all rounds, on every comm, stand in the order of chunks."""
    seen = {}

    class Counted:
        def __init__(self, name, ready):
            self.name, self.ready = name, ready

        def done(self):
            return self.ready()

    ready = {"a": False, "b": True}

    def rounds(name):
        for number in range(3):
            seen.setdefault(number, []).append(name)
            yield Counted(name, lambda: ready[name])

    chains = [Chain(rounds(name), apart=True) for name in ("a", "b")]

    def advance():
        ahead = math.inf
        for chain in chains:
            ahead = chain.advance(ahead)

    advance()
    assert seen == {0: ["a", "b"]}, "b is done with its first round, but a is not"
    ready["a"] = True
    advance()
    assert seen == {number: ["a", "b"] for number in range(3)}


def test_parameters_that_left_at_the_beginning_go_on_in_forward():
    moved = []

    def work(comm):
        axes = compose(Run(rule="awc", exchange="neighbor(ring)", workers=2)).axes
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            pace.step()
        engine = pace.engines[0]
        before = engine.advance
        engine.advance = lambda: (moved.append(comm.rank), before())
        model(torch.ones(3, 4))
        engine.advance = before
        pace.step()
        pace.close()

    run_ranks(2, work)
    assert sorted(moved) == [0, 0, 1, 1], "once before each of the two layers with parameters"
