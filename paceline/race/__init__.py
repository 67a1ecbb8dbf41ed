"""Races: which strategy is faster, and how sure that is. The package is also a function, `paceline.race(...)`.

Importing any file of this package sets `paceline.race` to this module, so the module is made callable.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CallableRoom(ModuleType):
    """The module `paceline.race`, which races strategies when it is called; see paceline.race.notebook."""

    def __call__(self, **settings: Any) -> Any:
        from paceline.race.notebook import race

        return race(**settings)


sys.modules[__name__].__class__ = CallableRoom
