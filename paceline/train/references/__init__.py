"""References: competitors of the strategies that are not made of paceline's rules and exchanges."""

from paceline.menu.menu import Menu

MENU = Menu("reference", {"ddp": ".ddp:Ddp", "limit": ".limit:Limit"}, package=__name__)
