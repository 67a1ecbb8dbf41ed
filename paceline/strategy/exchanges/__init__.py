"""Exchanges: how ranks combine one chunk."""

from paceline.menu.menu import Menu

MENU = Menu(
    "exchange",
    {
        "allreduce": ".allreduce:AllReduce",
        "ps": ".ps:Ps",
        "hierarchical": ".hierarchical:Hierarchical",
        "neighbor": ".neighbor:Neighbor",
        "window": ".window:Window",
    },
    package=__name__,
)
