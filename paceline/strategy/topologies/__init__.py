"""Topologies: the neighbors that each rank mixes with, and their weights, at each step."""

from paceline.menu.menu import Menu

MENU = Menu(
    "topology",
    {
        "ring": ".ring:Ring",
        "one_way_ring": ".one_way_ring:OneWayRing",
        "exp2": ".exp2:Exp2",
        "exp": ".exp:Exp",
        "grid": ".grid:Grid",
        "star": ".star:Star",
        "full": ".full:Full",
        "inner_outer": ".inner_outer:InnerOuter",
        "one_peer": ".one_peer:OnePeer",
        "graph": ".graph:Graph",
    },
    package=__name__,
)
