"""How one chunk is combined among ranks."""

from paceline.menu import Menu

MENU = Menu(
    "exchange",
    {
        "allreduce": "paceline.exchanges.allreduce:AllReduce",
        "hierarchical": "paceline.exchanges.hierarchical:Hierarchical",
        "neighbor": "paceline.exchanges.neighbor:Neighbor",
    },
)
