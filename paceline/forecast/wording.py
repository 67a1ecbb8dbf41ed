"""Words for an outlook: the part that limits a step, and bandwidths as networks are sold."""

from __future__ import annotations

from paceline.forecast.job import Outlook

HIDDEN = 0.02  # share of a step; less waiting than this limits nothing
PARTS = {"inside": "inside nodes", "out": "ports, out", "in": "ports, in", "core": "network", "cores": "host cores"}
MEANING = {
    "computing": "communication hides behind compute",
    "slow ranks": "everybody waits for ranks that compute longer",
    "coding": "compressors take longer than what they save",
    "latency": "messages are too many or too small for the time that each takes to start",
    "inside nodes": "lines inside a node carry more than fits behind backward",
    "ports, out": "a node sends more than its port carries behind backward",
    "ports, in": "a node receives more than its port carries behind backward",
    "network": "the network between nodes is oversubscribed",
    "host cores": "cores of the hosts are busy with moving bytes",
}


def bottleneck(outlook: Outlook) -> str:
    """Return the part of a job that limits it; MEANING explains each part."""
    if outlook.step - outlook.slowest <= HIDDEN * outlook.step:
        return "slow ranks" if outlook.slowest > 1.05 * outlook.compute else "computing"
    part, seconds = max(outlook.busy.items(), key=lambda entry: entry[1])
    if outlook.coding > max(seconds, outlook.latency):
        return "coding"
    if outlook.latency > seconds:
        return "latency"
    if outlook.slowest - outlook.compute > outlook.exposed:
        return "slow ranks"
    return PARTS[part]


def with_unit(nbytes: float) -> str:
    """Format a bandwidth in bits per second, as networks are sold."""
    bits = 8 * nbytes
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"
