"""Do the links of a lab have the rate that was asked for? Needs root and an otherwise idle machine.

    rate on the wire      median of 5 measurements of 2 s, all hosts sending at once, of the requested rate
    message of 1 MiB      time for the message and a short answer, of bytes / goodput

--quick measures one small lab for a moment, to see that the script works.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from harness import show

from paceline.cluster.lab.lab import Lab
from paceline.cluster.lab.network import Network

LABS = [Lab(4, "100mbit"), Lab(4, "200mbit"), Lab(4, "500mbit"), Lab(4, "1gbit"), Lab(8, "200mbit"), Lab(8, "500mbit")]
WITHIN = 0.03
MESSAGE = 1 << 20
SERVE = """
import socket, sys
door = socket.create_server((sys.argv[1], 29500)); print("up", flush=True)
line, _ = door.accept(); size = int(sys.argv[2]); place = bytearray(1 << 18)
while True:
    left = size
    while left:
        count = line.recv_into(place, min(left, len(place)))
        if not count: sys.exit(0)
        left -= count
    line.sendall(b"x")
"""
SEND = """
import socket, statistics, sys, time
line = socket.create_connection((sys.argv[1], 29500)); data = bytes(int(sys.argv[2])); times = []
line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(int(sys.argv[3])):
    began = time.perf_counter(); line.sendall(data); line.recv(1); times.append(time.perf_counter() - began)
print(statistics.median(times[2:]))
"""


def wire_share(network: Network, seconds: float, repeats: int) -> list[float]:
    """The rate on the wire of each host, of the requested one."""
    rates = [network.goodput(seconds) for _ in range(repeats)]
    return [median(column) / network.lab.goodput for column in zip(*rates, strict=True)]


def message_share(network: Network, repeats: int) -> float:
    """The time of a message, of bytes / goodput."""
    python = [sys.executable, "-I", "-S", "-c"]
    words = [*network.prefix(0), *python, SERVE, network.address(0), str(MESSAGE)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        words = [*network.prefix(1), *python, SEND, network.address(0), str(MESSAGE), str(repeats)]
        seconds = float(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    finally:
        server.kill()
        server.communicate()
    return seconds * network.lab.goodput / MESSAGE


def main() -> int:
    quick = "--quick" in sys.argv
    labs, seconds, repeats = ([Lab(2, "100mbit")], 0.5, 1) if quick else (LABS, 2.0, 5)
    rows, fine = [], True
    for lab in labs:
        with Network(lab) as network:
            shares = wire_share(network, seconds, repeats)
            message = message_share(network, 5 if quick else 30)
        worst = max(shares, key=lambda share: abs(share - 1))
        good = abs(worst - 1) <= WITHIN and 0.95 <= message <= 1.10
        fine &= good
        rows.append((str(lab), f"{worst:.3f}", f"{message:.3f}", "ok" if good else "off"))
    show(("lab", "rate on the wire (worst host)", "1 MiB message", "within 3 %, 0.95 to 1.10"), rows)
    return 0 if fine or quick else 1


if __name__ == "__main__":
    sys.exit(main())
