"""paceline forecast --check: measure held-out configurations here, forecast them, and write a certificate.

    calibrating runs   -> figures of the fabric (fit.py)
    held-out runs      -> measured; repeated once or twice if the interval is too wide
    forecast           -> of every held-out run, from the figures and the model's times alone

Every run is kept as a record. A check that was stopped continues where it stopped. The certificate is written
after every row, so a check that was stopped leaves a certificate of the rows so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from statistics import median

from paceline.cluster.environment import capture
from paceline.cluster.lab.lab import read_lab
from paceline.errors import PacelineError
from paceline.forecast.calibrate import Calibration, in_steady_steps
from paceline.forecast.cases import Case, lab_cases, lab_profile, profile_path, real_cases
from paceline.forecast.certificate import FILE, WIDEST, Certificate, Checked
from paceline.forecast.fabric import Fabric, Line
from paceline.forecast.fit import Values, fit
from paceline.forecast.study import point_of
from paceline.measure.measure import measure
from paceline.measure.record.record import Record, make_folder, read, write
from paceline.measure.stats.intervals import mean_interval
from paceline.run.reference import is_bound
from paceline.run.run import Run
from paceline.workload.profile import StepProfile
from paceline.workload.profile import write as write_profile

AGAIN = 2  # further attempts for a run whose interval is too wide
LAB_GUESS = {"goodput": 0.95, "latency": 3e-4, "call": 1e-3, "incast": 0.05, "host": 1e-9}
REAL_GUESS = {"call": 1e-4, "bandwidth": 2e9}
Tell = Callable[[str], None]
Model = Callable[["Seen"], float]  # the forecast rate of a run


@dataclass(frozen=True)
class Seen:
    """A measured run, with the share of the cores that was busy during it."""

    case: Case
    record: Record
    cpu: float
    attempts: int

    @property
    def rate(self) -> float:
        return float(self.record.rate["total"]["mean"])

    @property
    def bounds(self) -> tuple[float, float]:
        half = self.width * self.rate
        return self.rate - half, self.rate + half

    @property
    def width(self) -> float:
        return width_of(self.record)


def check(runs: Path, *, quick: bool = False, tell: Tell = print) -> Certificate:
    """Carry out the check, and write the certificate to the folder of records."""
    folder = runs / ("check-quick" if quick else "check")
    make_folder(runs)
    make_folder(folder)
    rows: list[Checked] = []
    notes: list[str] = []
    parts = [("lab", lab_cases(folder, quick=quick)), ("real", real_cases(quick=quick))]
    for kind, cases in parts:
        if kind == "lab":
            _write_profiles(folder, cases)
        for row in _rows(kind, folder, cases, tell, notes):
            rows.append(row)
            write(runs / FILE, _certificate(rows, notes).to_json())
    return _certificate(rows, notes)


def _certificate(rows: Sequence[Checked], notes: Sequence[str]) -> Certificate:
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Certificate(tuple(rows), _machine(), time, tuple(notes))


def _machine() -> str:
    facts = capture()
    return f"{facts.get('processor')}, {facts.get('cores')} cores"


def _write_profiles(folder: Path, cases: Sequence[Case]) -> None:
    for model in {case.group.partition(" on ")[0] for case in cases}:
        path = profile_path(folder, model)
        if not path.exists():
            write_profile(path, lab_profile(model))


def _measured(folder: Path, cases: Sequence[Case], tell: Tell, notes: list[str]) -> Iterator[Seen]:
    for number, case in enumerate(cases, 1):
        try:
            seen = _one(folder, case)
        except PacelineError as problem:
            notes.append(f"{case.name}: {str(problem).splitlines()[0]}")
            tell(f"{number}/{len(cases)} {case.name}: not measured: {str(problem).splitlines()[0]}")
            continue
        again = f", attempt {seen.attempts}" if seen.attempts > 1 else ""
        tell(
            f"{number}/{len(cases)} {case.name}: {seen.rate:,.1f} samples/s +- {seen.width:.1%}, "
            f"cores {seen.cpu:.0%} busy{again}"
        )
        yield seen


def _one(folder: Path, case: Case) -> Seen:
    """Return the record of a case: one that an earlier check has kept, or that of a new run.

    Repeat runs with wide intervals.
    """
    path, marks = folder / f"{case.name}.json", folder / f"{case.name}.txt"
    attempts, cpu = _marks(marks)
    record = read(path) if path.is_file() else None
    while record is None or (width_of(record) > WIDEST and attempts < 1 + AGAIN):
        before = _busy()
        record, _ = measure(case.run, lambda *_: None)
        attempts, cpu = attempts + 1, _share(before, _busy())
        write(path, record.to_json())
        write(marks, f"{attempts} {cpu:.4f}\n")
    return Seen(case, record, cpu, max(1, attempts))


def _marks(path: Path) -> tuple[int, float]:
    if not path.is_file():
        return 0, 0.0
    attempts, cpu = path.read_text().split()
    return int(attempts), float(cpu)


def width_of(record: Record) -> float:
    """Return half of the interval of a rate, relative to it, over its repeats.

    Repeats hold whole periods: with schedules that cross the step, single steps alternate, and say little.
    """
    interval = mean_interval(record.rate["total"]["repeats"])
    return (
        inf if interval.low is None or interval.high is None else (interval.high - interval.low) / 2 / interval.centre
    )


def _busy() -> tuple[float, float]:
    """Return the busy ticks and the total ticks of all cores."""
    ticks = [float(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _share(before: tuple[float, float], after: tuple[float, float]) -> float:
    return (after[0] - before[0]) / max(1.0, after[1] - before[1])


# forecasts ------------------------------------------------------------------------------------------


def _rows(kind: str, folder: Path, cases: Sequence[Case], tell: Tell, notes: list[str]) -> Iterator[Checked]:
    """Measure the calibrating runs, fit the figures to them, then measure and forecast the others one by one."""
    calibrating = list(_measured(folder, [case for case in cases if not case.held], tell, notes))
    if not calibrating:
        return
    forecast, figures = (_lab_model if kind == "lab" else _real_model)(calibrating)
    tell("calibrated: " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    for seen in _measured(folder, [case for case in cases if case.held], tell, notes):
        rate, naive = forecast(seen), _naive(kind, calibrating, seen)
        if rate > 0 and naive > 0:
            row = _row(seen, rate, naive)
            tell(f"  forecast {rate:,.1f}, error {row.error:.1%}; naive {naive:,.1f}, error {row.naive_error:.0%}")
            yield row


def steady(seen: Sequence[Seen]) -> Sequence[Seen]:
    """Return the calibrating runs that were measured well enough, or all if they are few."""
    well = [one for one in seen if one.width <= WIDEST]
    return well if len(well) >= max(2, len(seen) // 2) else seen


def _row(seen: Seen, forecast: float, naive: float) -> Checked:
    low, high = seen.bounds
    lab = seen.case.run.lab
    return Checked(
        name=seen.case.name,
        kind=seen.case.kind,
        group=seen.case.group,
        strategy=seen.case.strategy,
        model=seen.case.run.model,
        workers=seen.case.run.workers,
        bandwidth=read_lab(lab).bytes_per_second if lab else 0.0,
        measured=seen.rate,
        low=low,
        high=high,
        forecast=forecast,
        naive=naive,
        cpu=seen.cpu,
        attempts=seen.attempts,
    )


def lab_fabric(hosts: int, bandwidth: float, values: Values) -> Fabric:
    """Return the fabric of a lab: hosts with one worker each, which share the cores of this machine."""
    return Fabric(
        nodes=hosts,
        ranks=1,
        between=Line(values["latency"], bandwidth * min(1.0, values["goodput"])),
        algorithm="ring",
        scatter="direct",
        incast=values["incast"],
        call=values["call"],
        cores=len(os.sched_getaffinity(0)),
        host=values["host"],
        aside=True,
    )


def _lab_model(calibrating: Sequence[Seen]) -> tuple[Model, dict[str, float]]:
    update = median(_update(one) for one in calibrating)
    known = steady(calibrating)
    figures = fit(
        LAB_GUESS,
        lambda values: [_forecast_lab(one, values, update) for one in known],
        [one.rate for one in known],
    )
    return lambda seen: _forecast_lab(seen, figures, update), {**figures, "update": update}


def _update(seen: Seen) -> float:
    """Return the seconds that the optimizer takes per byte of the model, on cores that all hosts share."""
    nbytes = 4 * sum(tensor.numel for tensor in _profile(seen).layout)
    return float(seen.record.breakdown.get("update", 0.0)) / nbytes


def _profile(seen: Seen) -> StepProfile:
    return lab_profile(seen.case.group.partition(" on ")[0])


def _forecast_lab(seen: Seen, values: Values, update: float) -> float:
    run = seen.case.run
    assert run.lab is not None
    lab = read_lab(run.lab)
    profile = _profile(seen)
    nbytes = 4 * sum(tensor.numel for tensor in profile.layout)
    profile = profile.model_copy(update={"update": update * nbytes})
    return _rate(run, lab_fabric(lab.hosts, lab.bytes_per_second, values), profile)


def _rate(run: Run, fabric: Fabric, profile: StepProfile) -> float:
    plain = run.with_(lab=None, compute="real")
    point = point_of(plain, run.strategy or "allreduce", fabric, Calibration(profile, "the check"))
    return 0.0 if point.outlook is None else point.outlook.rate


def _real_model(calibrating: Sequence[Seen]) -> tuple[Model, dict[str, float]]:
    profiles = {one.case.run.model: _measured_profile(one.record) for one in calibrating if one.case.run.workers == 1}
    alone = {one.case.run.model: one.rate for one in calibrating if one.case.run.workers == 1}
    limits = [one for one in calibrating if is_bound(one.case.strategy) and one.case.run.model in alone]
    slow = median(2 * alone[one.case.run.model] / one.rate for one in limits) if limits else 1.0
    fitted = [one for one in calibrating if one.case.run.workers == 2 and not is_bound(one.case.strategy)]

    def rate(seen: Seen, values: Values) -> float:
        return _forecast_real(seen, values, profiles.get(seen.case.run.model), slow)

    figures = dict(REAL_GUESS)
    if fitted:
        figures = fit(
            REAL_GUESS, lambda values: [max(1e-9, rate(one, values)) for one in fitted], [one.rate for one in fitted]
        )
    return lambda seen: rate(seen, figures), {**figures, "slowdown of two workers": slow}


def _measured_profile(record: Record) -> StepProfile | None:
    if not record.profile:
        return None
    profile = StepProfile.model_validate(record.profile)
    profile = in_steady_steps(profile, {"workers": record.workers, "breakdown": record.breakdown})
    update = float(record.breakdown.get("update", 0.0)) + float(record.breakdown.get("other", 0.0))
    return profile.model_copy(update={"update": update})


def _forecast_real(seen: Seen, values: Values, profile: StepProfile | None, slow: float) -> float:
    run = seen.case.run
    if profile is None:
        return 0.0
    alone = run.workers == 1
    fabric = Fabric(
        nodes=1,
        ranks=run.workers,
        inside=Line(0.0, values["bandwidth"]),
        algorithm="direct",
        scatter="direct",
        call=0.0 if alone else values["call"],
        inline=True,
    )
    return _rate(run, fabric, profile if alone else slower(profile, slow))


def slower(profile: StepProfile, factor: float) -> StepProfile:
    """Return the profile of the same step on cores that are slower by a factor."""
    return profile.model_copy(
        update={
            "forward": tuple(factor * time for time in profile.forward),
            "forward_seconds": factor * profile.forward_seconds,
            "ready": tuple(factor * time for time in profile.ready),
            "backward": factor * profile.backward,
            "update": factor * profile.update,
            "step": factor * profile.step,
        }
    )


def _naive(kind: str, calibrating: Sequence[Seen], seen: Seen) -> float:
    """Return a naive forecast, with the efficiency of the same strategy in the calibrating runs, or their median."""
    single = _singles(kind, [*calibrating, seen])
    known: dict[tuple[str, int], list[float]] = {}
    for one in calibrating:
        run = one.case.run
        efficiency = one.rate / (run.workers * single[one.case.name])
        for key in ((one.case.strategy, run.workers), ("", run.workers), ("", 0)):
            known.setdefault(key, []).append(efficiency)
    workers = seen.case.run.workers
    keys = ((seen.case.strategy, workers), ("", workers), ("", 0))
    values = next((known[key] for key in keys if key in known), [1.0])
    return median(values) * workers * single[seen.case.name]


def _singles(kind: str, seen: Sequence[Seen]) -> Mapping[str, float]:
    """Return the rate of one worker alone, for every run."""
    if kind == "lab":
        profiles = {one.case.name: _profile(one) for one in seen}
        return {name: p.batch_size / (p.forward_seconds + p.backward) for name, p in profiles.items()}
    alone = {one.case.run.model: one.rate for one in seen if one.case.run.workers == 1 and not one.case.held}
    return {one.case.name: alone.get(one.case.run.model, one.rate) for one in seen}


def spoken(certificate: Certificate) -> Iterator[str]:
    """Yield the certificate as a table, with its errors."""
    yield f"{'configuration':42} {'measured':>9} {'+-':>5} {'forecast':>9} {'error':>6} {'naive':>6} cores"
    for row in certificate.rows:
        note = "" if row.counts else "  unmeasured"
        yield (
            f"{row.name[:42]:42} {row.measured:>9,.1f} {row.width:>5.1%} {row.forecast:>9,.1f} "
            f"{row.error:>6.1%} {row.naive_error:>6.0%} {row.cpu:>5.0%}{note}"
        )
    for kind in ("lab", "real"):
        rows = certificate.of(kind)
        if rows:
            errors, naive = [row.error for row in rows], [row.naive_error for row in rows]
            yield (
                f"{kind}: {len(rows)} configurations, error median {median(errors):.1%}, worst {max(errors):.1%}; "
                f"naive {median(naive):.1%}, worst {max(naive):.1%}"
            )
    tau, regret = certificate.rank_correlation(), certificate.regret()
    if tau is not None and regret is not None:
        yield f"order within a model and lab: rank correlation {tau:.2f}, regret {regret:.1%} (medians over groups)"
    if certificate.unmeasured:
        yield f"unmeasured: {', '.join(row.name for row in certificate.unmeasured)}"
    yield from (f"note: {note}" for note in certificate.notes)
