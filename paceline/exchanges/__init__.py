"""How one chunk is combined among ranks."""

from paceline.menu import Menu

MENU = Menu(
    "exchange",
    {
        "allreduce": "paceline.exchanges.allreduce:AllReduce",
        "ps": "paceline.exchanges.ps:Ps",
        "hierarchical": "paceline.exchanges.hierarchical:Hierarchical",
        "neighbor": "paceline.exchanges.neighbor:Neighbor",
        "window": "paceline.exchanges.window:Window",
    },
)
