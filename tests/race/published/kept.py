"""Made-up records of runs that a published table asks for: no process is started for them."""

from paceline.cluster.environment import capture
from paceline.race.reproduce import reproduce
from tests.report.samples import record


def kept(run, folder, start=1, **changes):
    """A made-up record of a run, where its kind of record lies; `start` is the round."""
    made = record(run.strategy or "allreduce", run.workers, start, kind=changes.pop("kind", "measured"))
    identity = f"20261116-0000{start:02d}-{abs(hash((run.text, start))) % 0xFFFFFF:06x}"
    here = {"environment": capture(), **changes}
    made = made.model_copy(update={"run": run, "text": run.text, "id": identity, **here})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{made.id}.json"
    path.write_text(made.to_json())
    return path


def cells(name, runs):
    return [cell for sheet in reproduce(name, runs).sheets for cell in sheet.cells]
