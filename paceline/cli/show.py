"""paceline show: one record; also records and tables as text that fits in 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.elastic.recoveries import line_of
from paceline.measure.record.figures import Memory, Resources
from paceline.measure.record.record import Record, check_writable, write
from paceline.measure.stats.intervals import Interval, step_line


@app.command()
def show(
    record: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a record (see paceline list), a unique part of it, or a file.")
    ],
    runs: o.Runs = Path("runs"),
    json: o.JsonFile = None,
) -> None:
    """Show one record: command, rate, step time and its parts, bytes, machine and notes."""
    from paceline.measure.record.store import one

    if json is not None:
        check_writable(json)
    stored = one(record, runs)
    for line in shown(stored.record):
        print(line)
    print(f"{'file':7} {stored.path}")
    if json is not None:
        write(json, stored.record.to_json())


def shown(record: Record) -> Iterator[str]:
    """Yield the lines that `paceline show` prints about a record."""
    yield from _wrapped("run", record.text)
    yield f"{'id':7} {record.id}, {record.kind}, {record.time}"
    stack = record.environment
    packages = ", ".join(f"{name} {version}" for name, version in (stack.get("packages") or {}).items())
    machine = f"{stack.get('cores', '?')} x {stack.get('processor') or stack.get('machine', '?')}"
    yield from _wrapped("machine", f"{machine}, {stack.get('system', '')}")
    yield from _wrapped("stack", f"paceline {stack.get('paceline')}, python {stack.get('python')}, {packages}")
    yield from details(record)
    if record.verdict == "failed" or not record.rate.get("total"):
        return
    if record.loss:
        yield f"{'loss':7} {record.loss[0]:.4f} at first, {record.loss[-1]:.4f} at last"
    yield total_line(record)


def _wrapped(word: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, 72, break_on_hyphens=False) or [""]
    yield f"{word:7} {lines[0]}"
    yield from (f"{'':7} {line}" for line in lines[1:])


def clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def total_line(record: Record) -> str:
    """Return the line with the total rate, in the format that scripts of other benchmarks parse."""
    total = record.rate["total"]
    device = "GPU" if record.device == "cuda" else "CPU"
    return f"Total {record.unit}/sec on {record.workers} {device}(s): {total['mean']:.1f} +- {total['error']:.1f}"


class TotalLine:
    """A context manager that prints the total of a run as the last line, even if something fails after the run."""

    def __init__(self) -> None:
        self._record: Record | None = None

    def __call__(self, record: Record) -> None:
        self._record = record

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._record is not None:
            print(total_line(self._record), flush=True)


_KINDS = {
    "replayed": "forward and backward are timed waits, not arithmetic",
    "forecast": "computed from profiles and links; nothing was run",
}


def details(record: Record) -> Iterator[str]:
    """Yield the results of a run in lines of at most 80 columns."""
    for line in _details(record):
        yield from textwrap.wrap(line, 80, subsequent_indent=" " * 8, break_long_words=False)


def _details(record: Record) -> Iterator[str]:
    if record.verdict == "failed":
        yield f"failed  {record.failure}"
        return
    step, parts = record.step, record.breakdown
    if record.kind in _KINDS:
        yield f"kind    {record.kind}: {_KINDS[record.kind]}"
    yield (
        f"step    median {step['median'] * 1e3:.1f} ms, p95 {step['p95'] * 1e3:.1f} ms, "
        f"max {step['max'] * 1e3:.1f} ms ({record.outcome})"
    )
    if record.series.get("why"):
        yield f"why     {record.series['why']}"
    shown = [f"{name} {parts[name] * 1e3:.1f}" for name in parts if name != "step"]
    yield "parts   " + ", ".join(shown) + " ms"
    if record.elastic and record.task:
        yield f"task    {task_line(record)}"
    chunks = record.plan.get("chunks")
    cut = f" in {chunks} chunk(s)" if chunks else ""
    yield f"bytes   {received(record)} received per worker and step{cut} over {record.comm}"
    if network := record.network.get("requested"):
        rates = record.network["goodput"]
        slowest = f", TCP gets {size(min(rates))}/s and more" if rates else ""
        yield f"network {network['lab']}{slowest}"
    if "after_compression_per_step" in record.bytes:
        yield f"coding  {coding(record)}"
    distance = record.replicas.get("distance")
    if distance is not None:
        same = "bit-identical" if record.replicas["identical"] else f"{distance:.2g} apart (relative to their mean)"
        yield f"models  replicas are {same}"
    yield from _more(record)
    if record.resources.get("pss_peak"):
        yield f"memory  {memory(record)}"
    if record.accuracy:
        last = record.accuracy[-1]
        yield f"test    accuracy {last['value']:.4f}, loss {last['loss']:.4f} on {last['samples']:.0f} samples"
    for note in record.notes:
        yield f"note    {note}"
    for incident in record.incidents:
        words = line_of(dict(incident)) if record.elastic else f"{incident['what']}: {incident['count']}"
        yield f"note    {words}"


def task_line(record: Record) -> str:
    """Return the published columns of an elastic job: seconds of a task and of its parts, and who has which shards."""
    names = {"task": "whole", "allreduce": "all-reduce", "pack": "pack", "update": "apply"}
    columns = ", ".join(f"{word} {record.task[name]:.3f}" for name, word in names.items())  # type: ignore[literal-required]
    shards = ", ".join(map(str, record.elastic.get("shards", ())))
    return f"{columns} s per {record.task['batches']} batches; shards by rank {shards}"


def _more(record: Record) -> Iterator[str]:
    """Yield scaling, communication, use of the machine and expectations, as far as they are known."""
    scaling, talk = record.efficiency, record.communication
    if scaling:
        speedup = scaling["speedup"]
        times = plus_minus(Interval(speedup["value"], speedup["low"], speedup["high"]))
        share = plus_minus(Interval(scaling["value"], scaling["low"], scaling["high"]))
        yield f"scaling {times} times {scaling['baseline']}, efficiency {share}"
    share_exposed = talk.get("share")
    if share_exposed is not None and record.workers > 1:
        yield (
            f"comm    {100 * share_exposed:.1f} % of the step exposed, {(talk.get('overlapped') or 0) * 1e3:.1f} ms "
            f"overlapped, compute:comm {talk.get('ratio')}"
        )
    use = [f"CPU {share:.2f}" for share in record.resources.get("cpu_use", [])]
    flops = record.resources.get("flops")
    parts = flops.get("utilization") if flops else None
    model = f", {100 * min(parts):.0f} % of peak FLOPs ({flops['peak_is']})" if flops and parts else ""
    if use:
        yield f"cores   {', '.join(use)} per worker{model}" if len(use) <= 4 else f"cores   {use[0]} on rank 0{model}"
    for row in record.experiment.get("compared", []):
        value = "-" if row["measured"] is None else f"{row['measured']:.4g}"
        yield f"expect  {row['what']} {row['expected']:.4g}, measured {value}: {row['verdict']}"


def step_lines(record: Record, every: int = 10) -> Iterator[str]:
    """Yield step lines as tf_cnn_benchmarks prints them: the first step, every tenth, and the total."""
    seconds = record.series["seconds"]
    samples = record.run.samples_per_step
    yield "Step\tImg/sec\ttotal_loss"
    losses = _losses(record)
    for step in [1, *range(every, len(seconds) + 1, every)]:
        line = step_line(samples, seconds[:step])
        rate = f"images/sec: {line.mean:.1f} +/- {line.uncertainty:.1f} (jitter = {line.jitter:.1f})"
        loss = f"{losses[step]:.3f}" if step in losses else "-"
        yield f"{step}\t{rate}\t{loss}"
    yield "-" * 64
    yield f"total images/sec: {record.rate['total']['mean']:.2f}"
    yield "-" * 64


def _losses(record: Record) -> dict[int, float]:
    """Return losses by measured step; on a GPU only the last loss of each block is read."""
    steps, each = len(record.series["seconds"]), record.run.accumulate
    if len(record.loss) >= steps * each:
        return {step + 1: loss for step, loss in enumerate(record.loss[-steps * each :][each - 1 :: each])}
    blocks = len(record.rate["total"]["repeats"])
    return {(blocks - k) * (steps // blocks): loss for k, loss in enumerate(record.loss[: -blocks - 1 : -1])}


def received(record: Record) -> str:
    """Return the bytes that a worker receives per step, without servers; older records do not know them for ddp."""
    if not record.counts_bytes:
        return "-"
    return size(fmean(record.bytes["received_per_step"][: record.workers]))


def memory(record: Record) -> str:
    """Return the memory of the largest worker: its peak PSS as sampled, and its peak RSS as an upper bound."""
    alone = record.resources.get("alone")
    known: Memory | Resources = alone or record.resources
    seen, bound = known["pss_peak"], known.get("rss_peak")
    most = f", at most {size(max(bound))} (RSS)" if bound else ""
    return f"{size(max(seen))} seen (PSS){most} per worker{', in a start of its own' if alone else ''}"


def coding(record: Record) -> str:
    """Return the bytes before and after compression, and its seconds; means over workers."""
    before, after = record.bytes["before_compression_per_step"], record.bytes["after_compression_per_step"]
    encode, decode = record.resources["encode_seconds_per_step"], record.resources["decode_seconds_per_step"]
    return (
        f"{size(fmean(before))} -> {size(fmean(after))} per worker and step, "
        f"encode {fmean(encode) * 1e3:.1f}, decode {fmean(decode) * 1e3:.1f} ms"
    )


def size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    raise AssertionError


def plus_minus(interval: Interval, digits: int = 2) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.centre:.{digits}f}"
    half = (interval.high - interval.low) / 2
    if half > abs(interval.centre):
        return f"{interval.centre:.{digits}f} ?"  # the interval is wider than the figure
    return f"{interval.centre:.{digits}f} +- {half:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; columns are as wide as needed, the first aligned left, the others right."""
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
