"""Leave a group and enter another one in the middle of training: the weights are those of an undisturbed run."""

import copy
import threading
from dataclasses import replace

import pytest
import torch

from paceline.comm.thread import ThreadComm, ThreadGroup, run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy.memberships.fixed import Fixed
from paceline.train.pace import Pace
from paceline.types import View
from tests.train.problems import OPTIMIZERS, alone, batches, flat, loss_of, mlp


class Script:
    """Groups of members by the first step that each one makes; every group has a comm of its own."""

    def __init__(self, groups):
        self.groups = {step: (members, ThreadGroup(len(members))) for step, members in groups.items()}
        self.generations = {step: number for number, step in enumerate(self.groups)}


class Scripted(Fixed):
    """A membership whose groups change at steps that were decided before."""

    elastic = True

    def __init__(self, script, member):
        object.__setattr__(self, "script", script)
        object.__setattr__(self, "member", member)

    def join(self, comm):
        return ScriptedPresence(self.script, self.member)


class ScriptedPresence:
    def __init__(self, script, member):
        self.script, self.member, self.step, self.comm = script, member, 0, None

    def begin(self):
        if self.step in self.script.groups and self.member in self.script.groups[self.step][0]:
            members, group = self.script.groups[self.step]
            rank = members.index(self.member)
            self.comm = ThreadComm(rank, group)
            self.view = View(rank, len(members), generation=self.script.generations[self.step], members=members)
        return self.view

    def commit(self, ok):
        self.step += ok
        return ok


def pace_in(script, member, optimizer, model, **axes):
    composed = compose(Run(workers=2, **axes)).axes
    return Pace(model, optimizer, comm=None, axes=replace(composed, membership=Scripted(script, member)))


def train(pace, presence, data, last):
    """Make the steps up to `last` on this rank's share of every batch."""
    for x, y in data[presence.step : last]:
        pace._ensure_begun()
        share = len(x) // pace.comm.size
        mine = slice(pace.comm.rank * share, (pace.comm.rank + 1) * share)
        loss_of(pace.model, x[mine], y[mine]).backward()
        assert pace.step()


def in_threads(*works):
    """Run functions in threads of their own and return their results; the first failure is raised."""
    results, failures = [None] * len(works), []

    def body(place):
        try:
            results[place] = works[place]()
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=body, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


@pytest.mark.parametrize("axes", [{}, {"schedule": "bsp"}, {"exchange": "hierarchical"}], ids=str)
def test_a_group_that_shrinks_and_grows_ends_with_the_weights_of_one_process(axes):
    data = list(batches(torch.float64, steps=12))
    everybody = ("a", "b", "c", "d")
    script = Script({0: everybody, 4: ("a", "c"), 8: ("c", "a", "late")})
    donated, ready = [], threading.Event()

    def stays(member):
        model = mlp(torch.float64)
        pace = pace_in(script, member, OPTIMIZERS["momentum"](model.parameters()), model, **axes)
        train(pace, pace._presence, data, 7)
        if member == "a":  # what a newcomer needs to make step 7's successor with the others
            x, y = data[7]
            share = len(x) // pace.comm.size
            loss_of(model, x[:share], y[:share]).backward()
            original = pace._begin
            pace._begin = lambda: (donate(model, pace), original())
            assert pace.step()
            pace._begin = original
        train(pace, pace._presence, data, len(data))
        pace.close()
        return flat(model)

    def donate(model, pace):
        donated.append(copy.deepcopy((model.state_dict(), pace.optimizer.state_dict(), pace.state_dict())))
        ready.set()

    def leaves(member):
        model = mlp(torch.float64)
        pace = pace_in(script, member, OPTIMIZERS["momentum"](model.parameters()), model, **axes)
        train(pace, pace._presence, data, 4)
        pace.close()

    def comes():
        assert ready.wait(60)
        model = mlp(torch.float64, seed=1)  # its own start must not matter
        pace = pace_in(script, "late", OPTIMIZERS["momentum"](model.parameters()), model, **axes)
        for part, saved in zip((model, pace.optimizer, pace), donated[0], strict=True):
            part.load_state_dict(saved)
        pace._presence.step = 8
        train(pace, pace._presence, data, len(data))
        return flat(model)

    weights = in_threads(lambda: stays("a"), lambda: stays("c"), lambda: leaves("b"), lambda: leaves("d"), comes)
    undisturbed = alone(lambda: mlp(torch.float64), lambda: data)
    for place in (0, 1, 4):
        torch.testing.assert_close(weights[place], undisturbed, rtol=1e-12, atol=1e-12)  # sums of other orders
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[4])


@pytest.mark.parametrize("compressor", ["feedback(topk(ratio=0.1))", "powersgd(rank=2)"])
def test_what_a_compressor_still_owes_is_kept_when_a_group_is_entered_again(compressor):
    data = list(batches(steps=10))

    def weights(groups):
        script = Script(groups)

        def work(member):
            model = mlp()
            pace = pace_in(script, member, OPTIMIZERS["sgd"](model.parameters()), model, compressor=compressor)
            train(pace, pace._presence, data, len(data))
            return flat(model)

        return in_threads(lambda: work("a"), lambda: work("b"))

    assert torch.equal(weights({0: ("a", "b"), 5: ("a", "b")})[0], weights({0: ("a", "b")})[0])


def test_what_was_under_way_is_dropped_with_its_group():
    """A rank that has sent gradients to a group which is gone makes the step again in the next one."""
    data = list(batches(torch.float64, steps=6))
    script = Script({0: ("a", "b"), 3: ("a",)})

    def survivor():
        model = mlp(torch.float64)
        pace = pace_in(script, "a", OPTIMIZERS["momentum"](model.parameters()), model)
        presence = pace._presence
        train(pace, presence, data, 3)
        script.groups[3] = (("a",), ThreadGroup(1))
        script.generations[3] = 7
        x, y = data[3]
        loss_of(model, x, y).backward()  # half of a step; then the group changes
        pace._begin()
        loss_of(model, x, y).backward()
        assert pace.step()
        train(pace, presence, data, len(data))
        return flat(model)

    def gone():
        model = mlp(torch.float64)
        pace = pace_in(script, "b", OPTIMIZERS["momentum"](model.parameters()), model)
        train(pace, pace._presence, data, 3)

    weights, _ = in_threads(survivor, gone)
    torch.testing.assert_close(weights, alone(lambda: mlp(torch.float64), lambda: data), rtol=1e-12, atol=1e-12)


def test_an_engine_makes_only_layouts_before_it_enters():
    script = Script({0: ("a", "b")})

    def work(comm):
        model = mlp()
        pace = pace_in(script, "ab"[comm.rank], OPTIMIZERS["sgd"](model.parameters()), model)
        before = [arena.source.numel() for engine in pace.engines for arena in engine.arenas]
        pace._begin()
        after = [arena.source.numel() for engine in pace.engines for arena in engine.arenas]
        return before, after[0] > 0

    assert run_ranks(2, work) == [([0], True)] * 2
