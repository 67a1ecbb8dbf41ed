"""Settings of the sockets of `--comm tcp`."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import BadMember

MOST = 64  # data connections of a pair


@dataclass(frozen=True)
class TcpSettings:
    """Settings of `tcp(...)`.

    streams   data connections for each pair of ranks
    buffer    bytes of a socket buffer; with 0 the kernel tunes it
    """

    streams: int = 1
    buffer: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= MOST:
            raise BadMember(f"tcp(streams={self.streams})", why=f"a pair of ranks has 1 to {MOST} data connections")
        if not 0 <= self.buffer < 1 << 31:
            raise BadMember(f"tcp(buffer={self.buffer})", why="it is a number of bytes, 0 for the kernel's own tuning")


PLAIN = TcpSettings()
