"""What leaves a worker, when it may leave and when it must be back."""

from paceline.menu import Menu

MENU = Menu("rule", {"grad": "paceline.rules.grad:Grad"})
