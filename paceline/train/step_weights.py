"""Weights of neighbors that a user sets between steps, or as a function of the step.

    pace.set_weights(self_weight=0.5, src_weights={1: 0.5}, dst_weights={3: 1.0})
    pace.set_weights(lambda step: {"self_weight": 0.5, "src_weights": {...}, "dst_weights": {...}})

All ranks compare their weights. So every rank knows the whole matrix, and wrong weights raise on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.comm.transport import Comm
from paceline.errors import WrongCommand
from paceline.protocols import Costed
from paceline.run.axes import Axes
from paceline.strategy.exchanges.hierarchical import members
from paceline.train.weights import Weights, agree_parties
from paceline.types import Cluster, Mixing

WHAT = "pace.set_weights"
NAMES = ("self_weight", "src_weights", "dst_weights")
CLOSE = 1e-6  # tolerance, because weights such as 1/3 are rounded
WeightsOfStep = Callable[[int], Mapping[str, Any]]


class StepWeights:
    """The row of this rank, or of its node, for each exchange."""

    def __init__(self, comm: Comm, axes: Axes, written: WeightsOfStep | Mapping[str, Any]) -> None:
        self._comm, self._needs, self._party = comm, axes.rule.needs, axes.exchange.weighs
        placement = comm.placement or (0,) * comm.size
        self._parties = members(Cluster(placement if self._party == "node" else tuple(range(comm.size))))
        self._own = next(k for k, ranks in enumerate(self._parties) if comm.rank in ranks)
        self._function = written if callable(written) else None
        self._step, self._row = -1, Mixing(1.0)
        if not callable(written):
            self._row = self._agree(written)

    def row(self, step: int) -> Mixing:
        """Return the row of an exchange. Collective if the weights are a function and the step is new."""
        if self._function is not None and step != self._step:
            self._row, self._step = self._agree(self._function(step)), step
        return self._row

    def _agree(self, written: Mapping[str, Any]) -> Mixing:
        _check_names(written)
        weights: tuple[float | None, Weights, Weights] = (
            written.get("self_weight"),
            written.get("src_weights"),
            written.get("dst_weights"),
        )
        agreed = agree_parties(self._comm, self._parties, *weights, WHAT, self._party)
        check_matrix(agreed.matrix(), self._needs, self._party)
        return agreed.row(self._own)


def check_settable(exchange: Costed, twice: bool) -> None:
    """Raise if the exchange does not use weights, or if weights are set in two ways at once."""
    if not exchange.weighs:
        raise WrongCommand(
            f"{WHAT} with exchange {exchange}",
            why="it does not mix with neighbors by weights of a step",
            remedy="wrap(..., rule='atc', exchange='neighbor(exp2)'), or 'hierarchical(neighbor(exp2))' for nodes",
        )
    if twice:
        raise WrongCommand(
            f"{WHAT} with a function and with weights",
            why="the function returns all weights of a step",
            remedy="one of the two",
        )


def _check_names(written: Any) -> None:
    unknown = sorted(set(written) - set(NAMES)) if isinstance(written, Mapping) else [type(written).__name__]
    if unknown:
        raise WrongCommand(
            f"{WHAT}(function)",
            why=f"the function returns {unknown[0]}",
            remedy="return a dict with self_weight, src_weights and dst_weights, or some of them",
        )


def check_matrix(matrix: Tensor, needs: str, party: str) -> None:
    """Raise for weights with which a rule would converge to a wrong point.

    `needs` is the property that the rule requires.
    """
    if needs != "neighbors":
        _check_sums(
            matrix.sum(1),
            f"what {party} {{}} keeps and hears has weights that sum to {{:g}}, not 1",
            "leave self_weight out, and it becomes the rest; a sequence of ranks stands for weights of 1",
        )
    remedy = "rows and columns that sum to 1"
    _check_sums(
        matrix.sum(0),
        f"the weights that {party} {{}} has at itself and at others sum to {{:g}}, not 1: the mean would be wrong",
        remedy if needs == "neighbors" else f"{remedy}, or rule push_sum or push_diging, which need columns only",
    )
    apart = (matrix - matrix.T).abs()
    if needs == "symmetric" and float(apart.max()) > CLOSE:
        i, j = divmod(int(apart.argmax()), len(matrix))
        raise WrongCommand(
            WHAT,
            why=f"{party} {i} weighs {party} {j} by {matrix[i, j]:g}, and the reverse is {matrix[j, i]:g}; this rule "
            "needs symmetric weights",
            remedy="the same weight in both directions, or rule gradient_tracking",
        )


def _check_sums(sums: Tensor, why: str, remedy: str) -> None:
    wrong = torch.nonzero((sums - 1).abs() > CLOSE).flatten().tolist()
    if wrong:
        raise WrongCommand(WHAT, why=why.format(wrong[0], float(sums[wrong[0]])), remedy=remedy)
