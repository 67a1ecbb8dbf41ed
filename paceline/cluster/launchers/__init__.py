"""Launchers start the processes of a run."""

from paceline.menu.menu import Menu

MENU = Menu(
    "launcher",
    {
        "local": ".local:Local",
        "debug": ".debug:Debug",
        "ssh": ".ssh:Ssh",
        "slurm": ".slurm:Slurm",
        "ray": ".ray:Ray",
        "kubernetes": ".kubernetes:Kubernetes",
    },
    package=__name__,
)
