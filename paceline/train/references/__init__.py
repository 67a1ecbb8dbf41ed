"""What we race against that is not ours."""

from paceline.menu.menu import Menu

MENU = Menu("reference", {"ddp": ".ddp:Ddp", "limit": ".limit:Limit"}, package=__name__)
