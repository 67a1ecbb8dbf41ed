"""The entry point of one rank: reads the run from the job's folder, measures it, leaves what it saw there.

folder/run.json   ->   train   ->   folder/rank-K.json   or   folder/rank-K.failed.json
"""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # The launcher names the signal; a traceback of wherever this rank happened to be would say less.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from paceline.errors import PacelineError
from paceline.files.redact import redacted, secrets_of
from paceline.measure.record.events import EventRow
from paceline.measure.record.figures import NetworkPart, PlanPart
from paceline.measure.record.rank_report import Coding, Grade, RankReport, Replicas, Staleness
from paceline.measure.record.record import write
from paceline.run.run import Run


def main() -> int:
    folder = Path(os.environ["PACELINE_JOB"])
    rank = int(os.environ["RANK"])
    state: dict[str, Any] = {"step": -1}
    try:
        result = work(Run.model_validate_json((folder / "run.json").read_text()), state)
    except BaseException as problem:
        return _report(folder, rank, state["step"], problem)
    if result is not None:
        write(folder / f"rank-{rank}.json", result.to_json())
    return 0


def _report(folder: Path, rank: int, step: int, problem: BaseException) -> int:
    expected = isinstance(problem, PacelineError)
    exit_code = problem.exit_code if isinstance(problem, PacelineError) else 1
    failure = {
        "rank": rank,
        "step": step,
        "kind": type(problem).__name__,
        "error": str(problem) if expected else f"{type(problem).__name__}: {problem}",
        "traceback": "" if expected else traceback.format_exc(),
        "exit_code": exit_code,
    }
    failure = redacted(failure, secrets_of(os.environ))  # it is printed, and kept in a record
    write(folder / f"rank-{rank}.failed.json", json.dumps(failure))
    if not expected:
        print(failure["traceback"], file=sys.stderr, flush=True)
    return exit_code


def work(run: Run, state: dict[str, Any]) -> RankReport | None:
    """Build, warm up, measure; the report of this rank, and None from a server, which only serves to the end."""
    import torch

    from paceline.cluster.machine import Machine
    from paceline.comm.connect import connect, position
    from paceline.engine.device import find
    from paceline.run.compose.compose import compose
    from paceline.train.build import training_of

    where = position(os.environ)
    torch.set_num_threads(run.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = find(where.local_rank)
    composed = compose(run, Machine(torch.cuda.device_count()))
    choice = "gloo" if run.reference == "ddp" and run.comm == "auto" and device.kind == "cpu" else run.comm
    comm = connect(where, choice, run.deadline, cuda=device.kind == "cuda")
    if where.serves:
        _serve(comm)
        return None
    comm.placement = run.cluster.nodes if run.nodes else comm.placement
    failure = "failed"
    try:
        training = training_of(composed, comm, device)
        result = measure(run, training, comm, state)
        comm.barrier()
        failure = ""
    finally:
        comm.close(failure)
    return result


def _serve(attendant: Any) -> None:
    """Serve until all workers have left."""
    from paceline.train.serve import serve

    failure = "failed"
    try:
        serve(attendant)
        failure = ""
    finally:
        attendant.close(failure)


def measure(run: Run, training: Any, comm: Any, state: dict[str, Any]) -> RankReport:
    """Warm-up steps, then blocks of measured steps; every rank times its own."""
    from paceline.cluster.environment import capture
    from paceline.measure.clock import meet
    from paceline.measure.footprint import PeakMemory, peak_rss
    from paceline.measure.gpu import GpuUse
    from paceline.measure.meter import Meter, Tally
    from paceline.train.evaluate import accuracy, replicas

    state["step"] = 0
    warm = Meter()
    gpu = GpuUse(int(os.environ.get("LOCAL_RANK", "0")) if training.device == "cuda" else None)
    with PeakMemory() as memory, gpu:
        training.steps(max(1, run.warmup), warm)
        while left := training.pace.steps_to_plan:
            training.steps(left, Meter())  # what is measured below is the plan, not the way to it
    blocks, length = _lengths(run, training)
    if run.epochs is not None:
        training.begin_epochs()
    meter, seconds, graded = Meter(), [], []
    tally = Tally(lambda: (*comm.received(), *pushed(comm)), time.process_time)
    coded = _coding(training)
    gc.collect()
    for block in range(blocks):
        comm.barrier()
        start = time.perf_counter()
        with tally:
            training.steps(length, meter)
            training.settle()
        seconds.append(time.perf_counter() - start)
        state["step"] = training.pace.steps
        if comm.rank == 0:
            _tell(run, block, blocks, length / seconds[-1], training)
        if run.epochs is not None or block + 1 == blocks:
            graded += _graded(run, block, accuracy(training, comm), comm.rank)
    memory.look()
    steps = blocks * length
    per_step = [nbytes / steps for nbytes in tally.nbytes]
    sources = len(comm.received())
    coding = cast(Coding, {key: (now - coded[key]) / steps for key, now in _coding(training).items()})
    losses, rss_peak = list(training.losses), peak_rss()  # before the steps that only the events are taken from
    events, exposed, profile = _events(training, run)
    meetings = meet(comm.barrier, time.perf_counter)
    flops, peak = _costs(run, training, comm)
    return RankReport(
        rank=comm.rank,
        device=training.device,
        comm=type(comm).__name__.removesuffix("Comm").lower(),
        unit=training.workload.unit,
        samples=run.per_worker * run.accumulate * length,
        seconds=seconds,
        warmup=warm.steps,
        steps=meter.steps,
        parts=meter.parts,
        received_per_step=per_step[:sources],
        pushed_per_step=per_step[sources:],
        cpu_seconds_per_step=tally.seconds / steps,
        coding=coding,
        pss_peak=memory.peak,
        rss_peak=rss_peak,
        losses=losses,
        accuracy=graded,
        events=events,
        events_exposed=exposed,
        meetings=meetings,
        flops=flops,
        peak=peak,
        gpu={"use": gpu.share, "memory": gpu.memory},
        replicas=cast(Replicas, replicas(training.pace.model, comm)),
        plan=_plan(training),
        profile=profile,
        staleness=_staleness(training),
        network=_network(training),
        environment=capture(),
        notes=list(_notes(run, training)),
        skipped=training.pace.loss_scale.skipped if training.pace.loss_scale else 0,
    )


def pushed(comm: Any) -> tuple[int, ...]:
    """Bytes that this worker has pushed to each server."""
    return () if comm.service is None else tuple(comm.service.sent)


def _lengths(run: Run, training: Any) -> tuple[int, int]:
    """Blocks and steps per block: repeats of some steps, or epochs."""
    if run.epochs is None:
        return run.repeats, run.steps or 10
    from paceline.workload import sources

    return run.epochs, max(1, sources.MENU.make(run.source).epoch(run.samples_per_step))


def _tell(run: Run, block: int, blocks: int, steps_per_second: float, training: Any) -> None:
    rate = steps_per_second * run.per_worker * run.accumulate
    word = "epoch" if run.epochs else "repeat"
    unit = training.workload.unit
    print(
        f"{word} {block + 1}/{blocks}: {rate:.1f} {unit}/sec per worker, loss {training.losses[-1]:.4f}",
        flush=True,
    )


def _graded(run: Run, block: int, found: dict[str, Any] | None, rank: int) -> list[Grade]:
    """One entry of the record: with --steps there is one, at the end, and its epoch is 0."""
    if found is None:
        return []
    epoch = block + 1 if run.epochs else 0
    if rank == 0:
        when = f" after epoch {epoch}" if epoch else ""
        print(f"accuracy{when}: {found['value']:.4f} of {found['samples']}, loss {found['loss']:.4f}", flush=True)
    return [{"epoch": epoch, "value": found["value"], "loss": found["loss"], "samples": found["samples"]}]


def _notes(run: Run, training: Any) -> Iterator[str]:
    if run.reference:
        yield training.pace.note
    if run.compute != "real":
        yield f"compute {run.compute}: times of a profile; tensors on the wire are real"
    if training.tests is not None and training.workload.grade is None:
        yield f"no accuracy: {run.model} does not say what is right (Workload.grade)"


def _events(training: Any, run: Run) -> tuple[list[EventRow], float, dict[str, Any] | None]:
    """The events of a few more steps that the rate does not count, the exposed seconds of one, and layer times."""
    from paceline.measure.meter import Diary

    steps = int(os.environ.get("PACELINE_WATCHED", "3"))
    if not steps:
        return [], 0.0, _profile(training, None, run)
    log: list[EventRow] = []
    meter = Diary(log, lambda: training.pace.steps)
    training.pace.record_events(log)
    watch = _watch(training, run)
    if watch is None:
        training.steps(steps, meter)  # in one go: what crosses the step is seen to
    else:
        for _ in range(steps):
            training.steps(1, meter)
            watch.stepped()
    training.pace.record_events(None)
    log.sort(key=lambda event: event[0])
    exposed = sum(meter.parts["exposed"]) / steps
    return log, exposed, _profile(training, watch, run)


def _watch(training: Any, run: Run) -> Any:
    """Nobody, where the plan was already made with a profile, and where hooks would change a compiled graph."""
    engines = training.pace.engines
    if run.compile or not engines or not training.pace.duty.averages_gradients or engines[0].profile is not None:
        return None
    return training.pace.watch()


def _profile(training: Any, watch: Any, run: Run) -> dict[str, Any] | None:
    engines = training.pace.engines
    found = watch.profile() if watch is not None else engines[0].profile if engines else None
    return found.model_copy(update={"model": run.model, "batch_size": run.per_worker}).to_dict() if found else None


def _network(training: Any) -> NetworkPart:
    """The link as measured in this run, where a schedule asked for it."""
    engines = training.pace.engines
    if not engines or engines[0].profile is None:
        return {}
    link = engines[0].link
    return {"measured": {"latency": link.latency, "bandwidth": link.bandwidth}}


def _costs(run: Run, training: Any, comm: Any) -> tuple[float | None, float | None]:
    """FLOPs of one sample, counted by rank 0, and the most that this worker can do, measured where it is a CPU."""
    from paceline.train.flops import peak_flops, training_flops

    training.pace.finish()  # rank 0 computes alone below: nothing may be under way that others take part in
    peak = peak_flops() if training.device == "cpu" else None
    flops = int(os.environ.get("PACELINE_FLOPS", "0")) or None  # counting loads half of torch: a race does it once
    if comm.rank == 0 and flops is None:
        workload = training.workload
        flops = training_flops(workload.model, workload.loss, next(training.batches), run.per_worker)
    return flops, peak


def _staleness(training: Any) -> Staleness:
    """Return when each step's gradients left and when its parameters were back, with rule server."""
    return training.pace.staleness()


def _coding(training: Any) -> dict[str, float]:
    """What compressing has cost so far: bytes before and after, seconds; empty without a compressor."""
    arenas = [arena for engine in training.pace.engines for arena in engine.arenas]
    spent = [vars(arena.codec.spent) for arena in arenas if arena.codec is not None]
    return {key: sum(one[key] for one in spent) for key in spent[0]} if spent else {}


def _plan(training: Any) -> PlanPart:
    engines = training.pace.engines
    sizes = [c.numel * engine.arenas[c.arena].layout.itemsize for engine in engines for c in engine.chunks]
    if not engines:
        return {}
    plan: PlanPart = {
        "schedule": str(engines[0].schedule),
        "chunks": len(sizes),
        "nbytes": sizes,
        "lanes": len(engines),
    }
    if engines[0].tuning:
        plan["tuning"] = engines[0].tuning
    if engines[0].crossing:
        # who reads the events can see what each chunk waited for and how urgent it was
        plan["needs"], plan["urgency"] = engines[0].needs, engines[0].urgency
    return plan


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Other ranks' threads may still hold locks of torch; leaving at once cannot hang.
    os._exit(code)
