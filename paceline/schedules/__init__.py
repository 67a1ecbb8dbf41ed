"""Where the arena is cut and in which order chunks leave."""

from paceline.menu import Menu

MENU = Menu(
    "schedule",
    {
        "bsp": "paceline.schedules.bsp:Bsp",
        "wfbp": "paceline.schedules.wfbp:Wfbp",
        "fusion": "paceline.schedules.fusion:Fusion",
        "mgwfbp": "paceline.schedules.mgwfbp:MgWfbp",
        "priority": "paceline.schedules.priority:Priority",
        "dear": "paceline.schedules.dear:Dear",
        "auto": "paceline.schedules.auto:Auto",
    },
)
