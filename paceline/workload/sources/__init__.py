"""Sources of batches."""

from __future__ import annotations

from paceline.menu.menu import Menu

MENU = Menu(
    "source",
    {
        "fake": ".fake:Fake",
        "idx": ".idx:Idx",
        "cifar10": ".cifar10:Cifar10",
        "imagefolder": ".imagefolder:ImageFolder",
        "tfrecord": ".tfrecord:TfRecord",
        "dataset": ".dataset:Dataset",
        "queue": ".queue:Queue",
        "zmq": ".zmq:Zmq",
    },
    package=__name__,
)
