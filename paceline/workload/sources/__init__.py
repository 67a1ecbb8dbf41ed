"""Sources of batches."""

from __future__ import annotations

from paceline.menu.menu import Menu

MENU = Menu("source", {"fake": ".fake:Fake", "idx": ".idx:Idx"}, package=__name__)
