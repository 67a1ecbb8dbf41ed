"""Who mixes with whom, with which weights, at each step."""

from paceline.menu import Menu

MENU = Menu(
    "topology",
    {
        "ring": "paceline.topologies.ring:Ring",
        "one_way_ring": "paceline.topologies.one_way_ring:OneWayRing",
        "exp2": "paceline.topologies.exp2:Exp2",
        "exp": "paceline.topologies.exp:Exp",
        "grid": "paceline.topologies.grid:Grid",
        "star": "paceline.topologies.star:Star",
        "full": "paceline.topologies.full:Full",
        "inner_outer": "paceline.topologies.inner_outer:InnerOuter",
        "one_peer": "paceline.topologies.one_peer:OnePeer",
        "graph": "paceline.topologies.graph:Graph",
    },
)
