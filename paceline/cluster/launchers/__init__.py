"""Launchers, which start the processes of a run."""

from paceline.menu.menu import Menu

MENU = Menu("launcher", {"local": ".local:Local", "ssh": ".ssh:Ssh", "debug": ".debug:Debug"}, package=__name__)
