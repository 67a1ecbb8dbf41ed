"""Where batches come from."""

from __future__ import annotations

from paceline.menu import Menu

MENU = Menu("source", {"fake": "paceline.sources.fake:Fake", "idx": "paceline.sources.idx:Idx"})
