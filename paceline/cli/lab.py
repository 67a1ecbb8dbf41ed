"""paceline lab: a cluster in a box, measured, or with a command on every host."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli.show import size, table
from paceline.cluster.lab.lab import Lab
from paceline.run.run import Run

DEFAULTS = Lab()


@app.command()
def lab(
    context: typer.Context,
    hosts: Annotated[int, typer.Option("--hosts", help="Number of virtual hosts, all on one switch.")] = DEFAULTS.hosts,
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Bandwidth of each link in each direction: 200mbit, 1gbit.")
    ] = DEFAULTS.bandwidth,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="How many seconds to measure the links.")
    ] = 1.0,
) -> None:
    """Build a virtual cluster inside this machine (needs root), measure its links, and remove it.

    With a command after --, the command runs on every host instead of the measurement.
    """
    cluster = Lab(hosts, bandwidth)
    if context.obj:
        from paceline.race.script import launch

        launch(context.obj, run=Run(workers=hosts, lab=str(cluster)), choices={})
        return
    _measure(cluster, seconds)


def _measure(cluster: Lab, seconds: float) -> None:
    from paceline.cluster.lab.network import Network
    from paceline.cluster.leftovers import sweep

    sweep()
    with Network(cluster) as network:
        rates = network.goodput(seconds)
        addresses = [network.address(host) for host in range(cluster.hosts)]
    rows = [
        (f"host {host}", addresses[host], f"{size(rate)}/s", f"{100 * rate / cluster.bytes_per_second:.1f} %")
        for host, rate in enumerate(rates)
    ]
    print(f"{cluster}: all hosts send to the next one at once, over TCP")
    for line in table(("receiver", "address", "goodput", "of the rate"), rows):
        print(line)
