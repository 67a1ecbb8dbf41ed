"""A program for a host of a lab: send to one host, receive from another, print the received bytes per second.

probe.py OWN_ADDRESS PEER_ADDRESS PORT SECONDS
"""

from __future__ import annotations

import socket
import sys
import threading
import time

BLOCK = 1 << 18
PATIENCE = 20.0  # seconds to wait until the other hosts listen
SETTLING = 0.3  # seconds at the start that are not measured: the shaper's burst and TCP slow start


def send(peer: str, port: int, seconds: float) -> None:
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            line = socket.create_connection((peer, port), timeout=PATIENCE)
            break
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.02)
    block = bytes(BLOCK)
    limit = time.monotonic() + seconds + SETTLING
    with line:
        while time.monotonic() < limit:
            line.sendall(block)


def receive(door: socket.socket) -> float:
    """Return the bytes per second of a transfer after its first SETTLING seconds."""
    line, _ = door.accept()
    line.settimeout(PATIENCE)
    place = bytearray(BLOCK)
    began = marked = last = time.monotonic()
    total = before = 0
    with line:
        while count := line.recv_into(place):
            last = time.monotonic()
            total += count
            if last - began < SETTLING:
                marked, before = last, total
    return (total - before) / max(last - marked, 1e-9)


def main(own: str, peer: str, port: str, seconds: str) -> None:
    with socket.create_server((own, int(port))) as door:
        door.settimeout(PATIENCE)
        sender = threading.Thread(target=send, args=(peer, int(port), float(seconds)))
        sender.start()
        rate = receive(door)
        sender.join()
    print(rate)


if __name__ == "__main__":
    main(*sys.argv[1:])
