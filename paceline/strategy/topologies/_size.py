"""Check the number of ranks and nodes of any topology."""

from __future__ import annotations

from paceline.errors import WrongCommand


def check_size(topology: object, size: int, nodes: int) -> None:
    """Refuse fewer than one rank, and more nodes than ranks."""
    if size < 1:
        raise WrongCommand(f"{topology} on {size} ranks", why="at least 1 rank is needed", remedy="1 or more ranks")
    if not 1 <= nodes <= size:
        raise WrongCommand(
            f"{topology} on {size} ranks and {nodes} nodes",
            why="every node needs at least 1 rank",
            remedy=f"1 to {size} nodes",
        )
