"""paceline lab: a cluster in a box, measured, or with a command on every host."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli.show import size, table
from paceline.lab.lab import Lab
from paceline.run import Run

DEFAULTS = Lab()


@app.command()
def lab(
    context: typer.Context,
    hosts: Annotated[int, typer.Option("--hosts", help="Network namespaces on one switch.")] = DEFAULTS.hosts,
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Of every link, each way: 200mbit, 1gbit.")
    ] = DEFAULTS.bandwidth,
    seconds: Annotated[float, typer.Option("--seconds", help="How long the links are measured.")] = 1.0,
) -> None:
    """Build a cluster inside this machine (root), measure its links or start a command on every host, remove it.

    A command: paceline lab --hosts 4 --bandwidth 200mbit -- python my_train.py
    """
    asked = Lab(hosts, bandwidth)
    if context.obj:
        from paceline.jobs.script import launch

        launch(context.obj, run=Run(workers=hosts, lab=str(asked)), choices={})
        return
    _measure(asked, seconds)


def _measure(asked: Lab, seconds: float) -> None:
    from paceline.lab.network import Network

    with Network(asked) as network:
        rates = network.goodput(seconds)
        addresses = [network.address(host) for host in range(asked.hosts)]
    rows = [
        (f"host {host}", addresses[host], f"{size(rate)}/s", f"{100 * rate / asked.bytes_per_second:.1f} %")
        for host, rate in enumerate(rates)
    ]
    print(f"{asked}: all hosts send to the next one at once, over TCP")
    for line in table(("receiver", "address", "goodput", "of the rate"), rows):
        print(line)
