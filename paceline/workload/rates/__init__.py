"""Schedules of the learning rate."""

from __future__ import annotations

from paceline.menu.menu import Menu

MENU = Menu(
    "lr schedule",
    {"constant": ".constant:Constant", "steps": ".steps:Steps", "cosine": ".cosine:Cosine"},
    package=__name__,
)
