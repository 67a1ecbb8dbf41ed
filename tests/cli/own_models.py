"""Model functions as users get them wrong."""


def garbage():
    return "a network"


def raising():
    raise RuntimeError("no weights here")
