"""A step that crosses: what goes on while the next forward runs."""

import itertools

import torch

from paceline.comm.thread import run_ranks
from paceline.engine.crossing import CrossingEngine
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from tests.train.problems import batches, loss_of, mlp


def test_a_layer_whose_parameters_are_there_lets_the_others_make_their_way():
    """Otherwise nothing would be sent, or heard, from the first layer to the first that has to wait."""
    engine, advanced = CrossingEngine.__new__(CrossingEngine), []
    engine.advance = lambda: advanced.append(True)
    engine._covers, engine._back = [[0]], {0}
    engine.need([0])
    assert advanced


class Lent:
    """A board that writes down whether it was given back."""

    def __init__(self, board):
        self._board, self.freed = board, 0

    def free(self):
        self.freed += 1

    def __getattr__(self, name):
        return getattr(self._board, name)


def test_every_board_of_a_plan_that_is_replaced_is_given_back():
    def work(comm):
        lent, make = [], comm.board
        comm.board = lambda length: lent.append(Lent(make(length))) or lent[-1]
        model = mlp()
        axes = compose(Run(workers=comm.size, schedule="auto(crossing=true)", optimizer="sgd(lr=0.1)")).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        data = itertools.cycle(batches())
        while pace.steps_to_plan:
            x, y = next(data)
            loss_of(model, x, y).backward()
            pace.step()
        pace.finish()
        before = [board.freed for board in lent]
        pace.close()
        return before, [board.freed for board in lent]

    for before, after in run_ranks(2, work):
        assert len(before) > 1
        assert sum(before) >= len(before) - 1, "one is in use"
        assert after == [1] * len(after)
