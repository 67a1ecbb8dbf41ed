"""Critical values for a t statistic that is looked at after every start: alpha spending, exact for normal values.

The error probability is spent over the starts by a rule that is fixed in advance and never used up (Lan, DeMets,
Biometrika 70, 1983), so nobody has to know how many starts there will be:

    starts             3     4     5     8    12    20    40
    share of alpha   .03   .10   .20   .50   .74   .90   .98       looks^2 / (looks^2 + HALF_SPENT^2)

The statistic exceeds the critical value of a start, for the first time, with the probability that this start may spend.
Intervals from these values are repeated confidence intervals (Jennison, Turnbull, J. R. Stat. Soc. B 51, 1989).

The values are exact because one number carries everything that later statistics depend on. With
u(n) = sum x / sqrt(sum x^2)

    t(n)^2 = (n - 1) u(n)^2 / (n - u(n)^2)            u(n + 1) = u(n) cos a + sin a

where the angle a has a density proportional to cos(a)^(n - 1) and does not depend on u(1) ... u(n), because the
direction of a normal vector does not depend on its length. The distribution of u without a claim so far is carried from
start to start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

HALF_SPENT = 6  # looks after which half of the error is spent; most of the power is near 6 to 20 starts
CELLS = 200  # of the distribution of |u|
ANGLES = 2001
Array = np.ndarray


def share_spent(count: int, least: int) -> float:
    """Return the share of the error that may be spent by the look after `count` starts."""
    looks = max(0, count - least + 1)
    return looks**2 / (looks**2 + HALF_SPENT**2)


class Looks:
    """Critical values of one error probability, computed from start to start as far as they are needed."""

    def __init__(self, alpha: float, least: int) -> None:
        self._alpha, self._least = alpha, least
        self._count = 2
        self._edges = np.linspace(0, math.sqrt(2), CELLS + 1)
        self._mass = np.diff(2 / np.pi * np.arcsin(self._edges / math.sqrt(2)))  # of two values: a uniform angle
        self._known = {2: math.inf}

    def critical(self, count: int) -> float:
        while self._count < count:
            self._advance()
        return self._known[count]

    def _advance(self) -> None:
        """Carry the distribution to the next start, and cut off what exceeds its critical value."""
        beyond = self._beyond()
        self._count += 1
        most = math.sqrt(self._count)
        allowed = self._alpha * (share_spent(self._count, self._least) - share_spent(self._count - 1, self._least))
        cut = _where(beyond, allowed, most) if allowed > 0 else most
        self._edges = np.linspace(0, cut, CELLS + 1)
        self._mass = -np.diff(beyond(self._edges))
        self._known[self._count] = math.inf if cut >= most else cut * math.sqrt((self._count - 1) / (most**2 - cut**2))

    def _beyond(self) -> Callable[[Array], Array]:
        """Return the probability that |u| of the next start exceeds a value and nothing was claimed before."""
        middle = (self._edges[1:] + self._edges[:-1]) / 2
        angles = np.linspace(-np.pi / 2, np.pi / 2, ANGLES)
        density = np.cos(angles) ** (self._count - 1)
        below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
        longest, best = np.sqrt(1 + middle**2)[:, None], np.arctan2(1, middle)[:, None]
        mass = self._mass

        def above(value: Array) -> Array:
            """Return the probability that u cos a + sin a exceeds a value, from each cell."""
            reach = np.arccos(np.clip(value / longest, -1, 1))
            ends = (np.clip(best + sign * reach, -np.pi / 2, np.pi / 2) for sign in (1, -1))
            high, low = (np.interp(end, angles, below) for end in ends)
            return (high - low) / below[-1]

        return lambda value: np.asarray(mass @ (above(value) + 1 - above(-value)))


def _where(beyond: Callable[[Array], Array], allowed: float, most: float) -> float:
    """Return the value that is exceeded with the allowed probability."""
    low, high = 0.0, most
    for _ in range(4):
        values = np.linspace(low, high, 65)
        place = int(np.searchsorted(-beyond(values), -allowed))
        low, high = values[max(0, place - 1)], values[min(place, 64)]
    return float(high)


@cache
def looks(alpha: float, least: int) -> Looks:
    return Looks(alpha, least)
