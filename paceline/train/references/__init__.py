"""References: competitors of the strategies that are not made of paceline's rules and exchanges.

Their traits are in `run/reference.py`.
"""

from paceline.menu.menu import Menu

MENU = Menu("reference", {"ddp": ".ddp:Ddp", "limit": ".limit:Limit"}, package=__name__)
# The classes for loops of user scripts.
OWN_LOOP = Menu("reference", {"ddp": ".ddp:OwnLoopDdp", "limit": ".limit:Limit"}, package=__name__)
