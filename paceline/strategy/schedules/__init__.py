"""Schedules: where the arena is cut into chunks, and in which order chunks leave."""

from paceline.menu.menu import Menu

MENU = Menu(
    "schedule",
    {
        "bsp": ".bsp:Bsp",
        "wfbp": ".wfbp:Wfbp",
        "fusion": ".fusion:Fusion",
        "mgwfbp": ".mgwfbp:MgWfbp",
        "priority": ".priority:Priority",
        "dear": ".dear:Dear",
        "auto": ".auto:Auto",
    },
    package=__name__,
)
