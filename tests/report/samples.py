"""Records as a race leaves them, made up: no process is started for them."""

import random

from paceline.measure.record.record import Record
from paceline.run.run import Run

RATES = {"limit": 210.0, "ddp": 178.0, "allreduce": 196.0, "wfbp": 188.0, "neighbor_allreduce": 203.0}
BASE = {"model": "mobilenet_v2", "image_size": 32, "batch_size": 64, "steps": 5, "repeats": 3, "threads": 1}


def record(strategy="allreduce", workers=2, start=1, kind="measured", seed=0, **changes):
    """One run of a contender; `start` is the round."""
    noise = random.Random(f"{strategy} {workers} {start} {seed}")
    each = RATES.get(strategy, 190.0) * (1 - 0.04 * (workers - 1)) if workers > 1 else 205.0
    repeats = [workers * each * noise.gauss(1, 0.01) for _ in range(3)]
    mean = sum(repeats) / 3
    step = 64 * workers / mean
    exposed = {"limit": 0.01, "ddp": 0.0, "allreduce": 0.05, "wfbp": 0.08}.get(strategy, 0.03) * step
    run = Run(workers=workers, strategy=strategy, **{**BASE, **changes.pop("run", {})})
    nbytes = 0 if strategy == "limit" or workers == 1 else 14_020_120
    values = {
        "kind": kind,
        "id": f"20261115-2301{start:02d}-{strategy[:4]}{workers}{'' if kind == 'measured' else kind[0]}{seed or ''}",
        "text": run.text,
        "time": f"2026-11-15T23:0{start}:00+00:00",
        "run": run,
        "race": {"name": "race-20261115-230042", "round": start, "sitting": "2026-11-15T23:00:42"},
        "environment": {
            "paceline": "0.1.0",
            "python": "3.11.7",
            "system": "Linux 6.18.44",
            "machine": "x86_64",
            "processor": "AMD EPYC",
            "cores": 2,
            "memory": 25274793984,
            "packages": {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
            "variables": {},
        },
        "notes": ["limit: gradients are not exchanged; ranks train apart"] if strategy == "limit" else [],
        "verdict": "steady",
        "workers": workers,
        "device": "cpu",
        "unit": "img",
        "comm": "gloo" if strategy == "ddp" else "shm",
        "rate": {
            "total": {
                "median": sorted(repeats)[1],
                "mean": mean,
                "low": mean * 0.98,
                "high": mean * 1.02,
                "confidence": 0.95,
                "error": mean * 0.01,
                "repeats": repeats,
            },
            "per_worker": [mean / workers] * workers,
        },
        "step": {"median": step, "p95": step * 1.1, "p99": step * 1.2, "max": step * 1.2, "samples": 30},
        "series": {"seconds": [step * noise.gauss(1, 0.03) for _ in range(15)]},
        "breakdown": {
            "data": 0.01 * step,
            "forward": 0.27 * step,
            "backward": 0.68 * step - exposed,
            "exposed": exposed,
            "update": 0.03 * step,
            "other": 0.01 * step,
            "step": step,
        },
        "bytes": {"sent_per_step": [nbytes] * workers, "received_per_step": [nbytes] * workers, "per_edge": []},
        "resources": {"pss_peak": [480e6] * workers, "rss_peak": [570e6] * workers},
        "plan": {"chunks": 1 if strategy != "wfbp" else 158} if strategy not in ("ddp", "limit") else {},
        "loss": [6.9 - 0.08 * k + 0.02 * noise.random() for k in range(16)],
    }
    return Record(**{**values, **changes})


def race(worlds=(1, 2, 4), strategies=tuple(RATES), starts=5):
    """Five rounds of every contender on each number of workers; alone there is only all-reduce."""
    return [
        record(strategy, workers, start)
        for start in range(1, starts + 1)
        for workers in worlds
        for strategy in (strategies if workers > 1 else ("allreduce",))
    ]


def events(ranks=2, steps=3, chunks=4, length=0.3):
    """What every rank wrote down of a few steps."""
    found = []
    for rank in range(ranks):
        lines = []
        for step in range(steps):
            zero = 100.0 + step * length + 0.001 * rank
            marks = {"data": 0, "forward": 0.002, "backward": 0.08, "computed": 0.26, "left": 0.262}
            marks |= {"waited": 0.28, "updated": 0.294, "end": 0.295}
            lines += [[zero + at, kind, step, -1, 0] for kind, at in marks.items()]
            for chunk in range(chunks):
                begin = zero + 0.1 + 0.04 * chunk
                lines += [[begin, "ready", step, chunk, 0], [begin, "leave", step, chunk, 0]]
                lines += [[min(begin + 0.05, zero + 0.279), "back", step, chunk, 0]]
        found.append(sorted(lines))
    return found


def cell(label, strategy="allreduce", workers=2, start=1, *, name="race-20261116-120000", same_result=True, **changes):
    """A record as a race leaves it: with the label of its contender, its heat, and what the race knows of its group."""
    found = record(strategy, workers, start, **changes)
    told = {"label": label, "heat": f"mobilenet_v2, {workers} worker(s), batch 64", "same_result": same_result}
    turn = {"name": name, "round": start, "sitting": f"{name} began", **told}
    return found.model_copy(update={"race": turn, "id": f"{found.id}-{label}-{name[-6:]}"})


def around(mean, records):
    """The same records with rates around this one, and a spread of one percent."""
    for k, entry in enumerate(records):
        entry.rate["total"]["mean"] = mean * (1 + 0.01 * (k % 3 - 1))
    return records


def graded(*values):
    """What a source with a test part leaves: one figure with --steps, one per epoch with --epochs."""
    epochs = range(1, len(values) + 1) if len(values) > 1 else [0]
    return [
        {"epoch": epoch, "value": value, "loss": 1 - value, "samples": 100}
        for epoch, value in zip(epochs, values, strict=True)
    ]
