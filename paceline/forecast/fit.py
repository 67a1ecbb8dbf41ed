"""Fit figures of a fabric to measured runs: the least mean error of logarithms, by the simplex of Nelder and Mead.

Every figure is positive and is changed by factors. A small penalty keeps figures that no run depends on at their guess.

J. A. Nelder and R. Mead, "A simplex method for function minimization", The Computer Journal, 1965.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log

import numpy as np

HOLD = 2e-3  # penalty of a factor e away from the guess
ROUNDS = 160
Values = Mapping[str, float]


def fit(
    guess: Values,
    forecasts: Callable[[Values], Sequence[float]],
    measured: Sequence[float],
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """Return the figures for which `forecasts` come closest to the measured rates."""
    names = list(guess)
    start = np.array([log(guess[name]) for name in names])
    target = np.log(np.asarray(measured))

    def loss(point: np.ndarray) -> float:
        values = {name: exp(min(50.0, max(-50.0, at))) for name, at in zip(names, point, strict=True)}
        errors = np.log(np.asarray(forecasts(values))) - target
        return float(np.mean(np.abs(errors))) + HOLD * float(np.sum((point - start) ** 2))

    best = _simplex(loss, start, rounds)
    return {name: exp(at) for name, at in zip(names, best, strict=True)}


def _simplex(loss: Callable[..., float], start: np.ndarray, rounds: int) -> np.ndarray:
    points = [start, *(start + step for step in 0.5 * np.eye(len(start)))]
    values = [loss(point) for point in points]
    for _ in range(rounds):
        order = np.argsort(values)
        points, values = [points[k] for k in order], [values[k] for k in order]
        if values[-1] - values[0] < 1e-5:
            break
        centre = np.mean(points[:-1], axis=0)
        away = centre + (centre - points[-1])
        mirrored = loss(away)
        if mirrored < values[0]:
            further = centre + 2 * (centre - points[-1])
            reached = loss(further)
            points[-1], values[-1] = (further, reached) if reached < mirrored else (away, mirrored)
        elif mirrored < values[-2]:
            points[-1], values[-1] = away, mirrored
        else:
            nearer = centre + 0.5 * (points[-1] - centre)
            reached = loss(nearer)
            if reached < values[-1]:
                points[-1], values[-1] = nearer, reached
            else:
                points = [points[0], *(points[0] + 0.5 * (point - points[0]) for point in points[1:])]
                values = [values[0], *(loss(point) for point in points[1:])]
    return points[int(np.argmin(values))]
