"""paceline lab: build a virtual cluster in this machine, measure it, or run a command on each of its hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli.show import size, table
from paceline.cluster.lab.lab import Lab
from paceline.errors import WrongCommand
from paceline.run.run import Run

DEFAULTS = Lab()


@app.command()
def lab(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(help="cut HOST or heal HOST: change a link of the running lab.")
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", help="Number of virtual hosts, all on one switch.")] = DEFAULTS.hosts,
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Bandwidth of each link in each direction: 200mbit, 1gbit.")
    ] = DEFAULTS.bandwidth,
    overlay: Annotated[
        str,
        typer.Option(
            "--overlay", help="none, or vxlan: a virtual network on top of the links, as containers often use."
        ),
    ] = DEFAULTS.overlay,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="Seconds to measure the links for.")
    ] = 1.0,
) -> None:
    """Build a virtual cluster inside this machine (needs root), measure its links, and remove it.

    A command after -- runs on every host instead of the measurement. While it runs, `paceline lab cut 2` in a second
    terminal takes the link of host 2 down, and `paceline lab heal 2` puts it up again.
    """
    if words:
        _change(words)
        return
    cluster = Lab(hosts, bandwidth, overlay)
    if context.obj:
        from paceline.race.script import launch

        launch(context.obj, run=Run(workers=hosts, lab=str(cluster)), choices={})
        return
    _measure(cluster, seconds)


STATES = {"cut": "down", "heal": "up"}


def _change(words: list[str]) -> None:
    """Cut or heal a link of the running lab."""
    from paceline.cluster.lab.network import set_link

    if len(words) != 2 or words[0] not in STATES or not words[1].isdecimal():
        raise WrongCommand(
            f"paceline lab {' '.join(words)}", why="it is cut or heal, and the number of a host", remedy="lab cut 2"
        )
    name = set_link(int(words[1]), STATES[words[0]])
    print(f"the link of host {words[1]} of {name} is {STATES[words[0]]}")


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
