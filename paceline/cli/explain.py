"""paceline explain: what a combination would do, or why it is refused, without running it."""

from __future__ import annotations

import json as jsons

from paceline.cli import app
from paceline.cli import options as o
from paceline.record import check_writable, write


@app.command()
def explain(
    workers: o.Workers = 2,
    strategy: o.StrategyName = None,
    rule: o.RuleText = None,
    exchange: o.ExchangeText = None,
    topology: o.TopologyText = None,
    schedule: o.ScheduleText = None,
    compress: o.CompressText = None,
    membership: o.MembershipText = None,
    comm: o.CommName = o.DEFAULTS.comm,
    nodes: o.Nodes = None,
    profile: o.ProfileFile = None,
    model: o.ModelText = o.DEFAULTS.model,
    classes: o.Classes = None,
    image_size: o.ImageSize = None,
    optimizer: o.OptimizerText = o.DEFAULTS.optimizer,
    precision: o.Precision = o.DEFAULTS.precision,
    json: o.JsonFile = None,
) -> None:
    """Print members, notes, chunks and bytes of a combination, or every reason why it is refused."""
    from paceline.jobs.explain import explain as work
    from paceline.jobs.explain import spoken

    if json is not None:
        check_writable(json)
    found = work(o.run_from(locals()))
    for line in spoken(found):
        print(line)
    if json is not None:
        members = {} if found.axes is None else {k: str(v) for k, v in vars(found.axes).items() if k != "notes"}
        values = {
            "text": found.run.text,
            "axes": members,
            "notes": list(found.notes),
            "model_bytes": found.model_bytes,
            "chunks": list(found.chunks),
            "planned": found.planned,
            "received": list(found.received),
            "rounds": found.rounds,
            "prediction": None if found.prediction is None else vars(found.prediction),
        }
        write(json, jsons.dumps(values, indent=1) + "\n")
