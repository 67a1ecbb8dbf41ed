"""Measure one training on this rank: warm-up, blocks of steps, and the report of all measurements."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from typing import Any, cast

from paceline.cluster.environment import capture
from paceline.measure.clock import meet
from paceline.measure.footprint import PeakMemory, peak_rss
from paceline.measure.gpu import GpuUse
from paceline.measure.meter import Diary, Meter, Tally
from paceline.measure.record.events import EventRow
from paceline.measure.record.figures import InputPart, NetworkPart, PlanPart
from paceline.measure.record.rank_report import Coding, Grade, RankReport, Replicas, Staleness
from paceline.measure.starved import queued_seconds
from paceline.run.run import Run
from paceline.train.evaluate import accuracy, replicas
from paceline.train.flops import peak_flops, training_flops


class Measurement:
    """Measures one training on this rank. Call `warm_up`, `begin`, `block` as often as needed, `grade`, `report`."""

    def __init__(self, run: Run, training: Any, comm: Any, state: dict[str, Any]) -> None:

        self.run, self.training, self.comm, self.state = run, training, comm, state
        self.seconds: list[float] = []
        self.drains: list[float] = []
        self._graded: list[Grade] = []
        self._trained = 0.0  # seconds of training so far
        self._cut: int | None = None  # steps of a first epoch that was resumed in its middle
        self._warm, self._meter = Meter(), Meter()
        self._bytes, self._travelled = Tally(lambda: (*comm.received(), *pushed(comm)), lambda: 0.0), 0  # steps
        self._cpu = Tally(lambda: (), time.process_time)
        self._queue = Tally(lambda: (), queued_seconds)
        self._memory = PeakMemory()
        self._gpu = GpuUse(int(os.environ.get("LOCAL_RANK", "0")) if training.device == "cuda" else None)

    def warm_up(self) -> list[float]:
        """Make steps that are not measured, until the plan is final. Return the seconds of the first --warmup steps.

        With --epochs there is no warm-up, because an epoch uses every sample once.
        """
        self.state["step"] = 0
        with self._memory, self._gpu:
            if self.run.epochs is not None:
                return []
            self.training.steps(max(1, self.run.warmup), self._warm)
            while left := self.training.pace.steps_to_plan:
                self.training.steps(left, Meter())  # not recorded: only steps with the final plan are measured
        return self._warm.steps

    def begin(self) -> None:
        self._coded = _coding(self.training)
        gc.collect()

    def block(self, length: int) -> None:
        """Measure a block of steps, including the exchange that crosses its last step."""
        self.comm.barrier()
        with self._bytes:
            self._timed(length, drain=True)
        self._travelled += length

    def turn(self, length: int) -> None:
        """Measure a block of steps as one contender's part of a turn.

        One unmeasured step precedes the block, so that caches are those of this contender. If exchanges cross the step,
        the block includes the exchange of the unmeasured step. Therefore the exchange of its last step is timed
        separately.
        """

        self.comm.barrier()
        with self._bytes:
            self.training.steps(1, Meter(), drain=False)
            self.training.settle()
            self._timed(length, drain=False)
            began = time.perf_counter()
            self.training.drain()
        self.drains.append(time.perf_counter() - began)
        self._travelled += 1 + length

    def _timed(self, length: int, *, drain: bool) -> None:
        start, before = time.perf_counter(), self.training.samples
        with self._queue, self._cpu:
            self.training.steps(length, self._meter, drain=drain)
            self.training.settle()
        self.seconds.append(time.perf_counter() - start)
        self._length, self._samples = length, self.training.samples - before
        self.state["step"] = self.training.pace.steps

    def epoch(self, length: int, *, first: bool) -> None:
        """Measure some steps of an epoch. Calls of one epoch form one block; the time between them does not count."""
        samples = self.training.samples
        self.block(length)
        self._trained += self.seconds[-1]
        if first or len(self.seconds) == 1:
            if len(self.seconds) == 1:
                self._cut = None if first else 0
            self._epoch_samples = 0
        else:
            self.seconds[-2:] = [self.seconds[-2] + self.seconds[-1]]
        if len(self.seconds) == 1 and self._cut is not None:
            self._cut += length
        self._epoch_samples += self.training.samples - samples
        self._samples = self._epoch_samples

    def _forget_cut_epoch(self) -> None:
        """Drop the first epoch if it was resumed in its middle and there are whole epochs after it."""
        if self._cut and len(self.seconds) > 1:
            del self.seconds[0], self._meter.steps[: self._cut]
            for part in self._meter.parts.values():
                del part[: self._cut]

    def tell_epoch(self, epoch: int, epochs: int) -> None:
        """Print the rate and the loss of the last epoch, on rank 0."""
        if self.comm.rank == 0:
            rate, unit = self._samples / self.seconds[-1], self.training.workload.unit
            loss = self.training.losses[-1]
            print(f"epoch {epoch + 1}/{epochs}: {rate:.1f} {unit}/sec per worker, loss {loss:.4f}", flush=True)

    def grade(self, block: int) -> None:
        """Evaluate on the test part of the source, if there is one."""
        seen = accuracy(self.training, self.comm)
        self._graded += _graded(self.run, block, seen, self.comm.rank, self._trained)

    @property
    def reached(self) -> bool:
        """Return whether the last evaluation has reached the target of the run."""
        target = self.run.target
        return target is not None and bool(self._graded) and self._graded[-1]["value"] >= target

    def progress(self) -> dict[str, Any]:
        """Return the part of the measurement that a checkpoint keeps."""
        return {"seconds": self._trained, "accuracy": [dict(grade) for grade in self._graded]}

    def resume(self, progress: dict[str, Any]) -> None:
        """Continue with the measurements that a checkpoint has kept."""
        self._trained = progress.get("seconds", 0.0)
        self._graded = [cast(Grade, dict(grade)) for grade in progress.get("accuracy", [])]

    def report(self, costs: tuple[float | None, float | None] | None = None) -> RankReport:
        """Return the report of this rank. `costs` are the FLOPs of a sample and the peak of this worker, if known."""

        run, training, comm = self.run, self.training, self.comm
        self._memory.look()
        self._forget_cut_epoch()
        steps = len(self._meter.steps)
        per_step = [nbytes / self._travelled for nbytes in self._bytes.nbytes]
        sources = len(comm.received())
        coding = cast(Coding, {key: (now - self._coded[key]) / steps for key, now in _coding(training).items()})
        losses, rss_peak = list(training.losses), peak_rss()  # taken before the extra steps of _events
        events, exposed, profile = _events(training, run)
        # Meetings bring events to one clock. They are collective, so what a rank has seen does not matter.
        meetings = meet(comm.barrier, time.perf_counter) if _watched() else []
        flops, peak = costs or _costs(run, training, comm)
        training.drain()
        return RankReport(
            rank=comm.rank,
            device=training.device,
            comm=type(comm).__name__.removesuffix("Comm").lower(),
            unit=training.workload.unit,
            samples=self._samples,
            seconds=self.seconds,
            warmup=self._warm.steps,
            steps=self._meter.steps,
            parts=self._meter.parts,
            buckets=list(training.pace.buckets),
            received_per_step=per_step[:sources],
            pushed_per_step=per_step[sources:],
            cpu_seconds_per_step=self._cpu.seconds / steps,
            queued_seconds_per_step=self._queue.seconds / steps,
            drains=self.drains,
            coding=coding,
            pss_peak=self._memory.peak,
            rss_peak=rss_peak,
            losses=losses,
            accuracy=self._graded,
            events=events,
            events_exposed=exposed,
            meetings=meetings,
            flops=flops,
            peak=peak,
            gpu={"use": self._gpu.share, "memory": self._gpu.memory},
            # replayed gradients are noise, and so is the distance of replicas that add it up
            replicas=cast(Replicas, replicas(training.pace.model, comm, distance=run.compute == "real")),
            plan=_plan(training),
            profile=profile,
            staleness=_staleness(training),
            network=_network(training),
            environment=capture(),
            notes=list(_notes(run, training)),
            input=_input(training),
            skipped=training.pace.loss_scale.skipped if training.pace.loss_scale else 0,
        )


def pushed(comm: Any) -> tuple[int, ...]:
    """Return the bytes that this worker has sent to each server."""
    return () if comm.service is None else tuple(comm.service.sent)


def _graded(run: Run, block: int, seen: dict[str, Any] | None, rank: int, seconds: float) -> list[Grade]:
    """Return the entry of the record for one evaluation, and print it on rank 0. With --steps its epoch is 0."""
    if seen is None:
        return []
    epoch = block + 1 if run.epochs else 0
    if rank == 0:
        when = f" after epoch {epoch}" if epoch else ""
        top5 = f", top-5 {seen['top5']:.4f}" if "top5" in seen else ""
        print(f"accuracy{when}: {seen['value']:.4f} of {seen['samples']}{top5}, loss {seen['loss']:.4f}", flush=True)
    grade: Grade = {"epoch": epoch, "value": seen["value"], "loss": seen["loss"], "samples": seen["samples"]}
    if "top5" in seen:
        grade["top5"] = seen["top5"]
    if run.epochs:
        grade["seconds"] = seconds
    return [grade]


def _notes(run: Run, training: Any) -> Iterator[str]:
    if run.reference:
        yield training.pace.note
    if run.compute != "real":
        yield f"compute {run.compute}: times of a profile; tensors on the wire are real"
    if run.target is not None:
        yield f"target {run.target:g}: see the accuracy of each epoch and its seconds of training"
    if training.tests is not None and training.workload.grade is None:
        yield f"no accuracy: {run.model} does not say what is right (Workload.grade)"


def _input(training: Any) -> InputPart:
    counts = training.counts()
    return {} if counts is None else cast(InputPart, {**vars(counts), "reasons": dict(counts.reasons)})


def _watched() -> int:
    """Return the number of steps whose events are kept. It is the same on all ranks."""
    return int(os.environ.get("PACELINE_WATCHED", "3"))


def _events(training: Any, run: Run) -> tuple[list[EventRow], float, dict[str, Any] | None]:
    """Make a few more steps. Return their events, the mean exposed seconds of a step, and layer times if measured."""

    steps = _watched()
    if not steps:
        return [], 0.0, _profile(training, None, run)
    log: list[EventRow] = []
    meter = Diary(log, lambda: training.pace.steps)
    training.pace.record_events(log)
    watch = _watch(training, run)
    if watch is None:
        training.steps(steps, meter)  # in one call, so that exchanges may cross the step
    else:
        for _ in range(steps):
            training.steps(1, meter)
            watch.stepped()
    training.pace.record_events(None)
    log.sort(key=lambda event: event[0])
    exposed = sum(meter.parts["exposed"]) / steps
    return log, exposed, _profile(training, watch, run)


def _watch(training: Any, run: Run) -> Any:
    """Return a Watch that measures layer times, or None if they are known or cannot be measured.

    They are known if the plan was made with a profile. A compiled model is not measured, because hooks would change it.
    """
    engines = training.pace.engines
    if run.compile or not engines or not training.pace.duty.averages_gradients or engines[0].profile is not None:
        return None
    return training.pace.watch()


def _profile(training: Any, watch: Any, run: Run) -> dict[str, Any] | None:
    engines = training.pace.engines
    profile = watch.profile() if watch is not None else engines[0].profile if engines else None
    return profile.model_copy(update={"model": run.model, "batch_size": run.per_worker}).to_dict() if profile else None


def _network(training: Any) -> NetworkPart:
    """Return the link that a schedule has measured in this run, or an empty dict."""
    engines = training.pace.engines
    if not engines or engines[0].profile is None:
        return {}
    link = engines[0].link
    return {"measured": {"latency": link.latency, "bandwidth": link.bandwidth}}


def _costs(run: Run, training: Any, comm: Any) -> tuple[float | None, float | None]:
    """Return the FLOPs of one sample (on rank 0), and the peak FLOPs per second of this worker (on a CPU)."""

    training.pace.finish()  # rank 0 computes alone below, so no exchange with other ranks may be under way
    peak = peak_flops() if training.device == "cpu" else None
    flops = int(os.environ.get("PACELINE_FLOPS", "0")) or None  # counting loads half of torch: a race does it once
    if comm.rank == 0 and flops is None:
        workload = training.workload
        flops = training_flops(workload.model, workload.loss, next(training.feed), run.per_worker)
    return flops, peak


def _staleness(training: Any) -> Staleness:
    """Return when the gradients of each step left and when its parameters came back. Only rule server records this."""
    return training.pace.staleness()


def _coding(training: Any) -> dict[str, float]:
    """Return what compression has cost so far: bytes before and after, and seconds. Empty without a compressor."""
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
        # so that a reader of the events can see what each chunk waited for and how urgent it was
        plan["needs"], plan["urgency"] = engines[0].needs, engines[0].urgency
    return plan
