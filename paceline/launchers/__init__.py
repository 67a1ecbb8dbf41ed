"""What starts the processes of a run."""

from paceline.menu import Menu

MENU = Menu("launcher", {"local": "paceline.launchers.local:Local"})
