"""The entry point of one rank. It reads the run from the job's folder, measures it, and writes its report there.

folder/run.json   ->   train   ->   folder/rank-K.json   or   folder/rank-K.failed.json
"""

from __future__ import annotations

if __name__ == "__main__":
    from paceline.comm.interruption import end_at_once

    end_at_once()

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.files.redact import redacted, secrets_of
from paceline.measure.record.rank_report import RankReport
from paceline.measure.record.record import write
from paceline.run.run import Run


def main() -> int:
    folder = Path(os.environ["PACELINE_JOB"])
    rank = int(os.environ["RANK"])
    state: dict[str, Any] = {"step": -1}
    try:
        result = work(Run.model_validate_json((folder / "run.json").read_text()), state)
    except BaseException as problem:
        return leave_failure(folder, rank, state["step"], problem)
    if result is not None:
        write(folder / f"rank-{rank}.json", result.to_json())
    return 0


def leave_failure(folder: Path, rank: int, step: int, problem: BaseException, contender: str = "") -> int:
    """Write the failure for the launcher and return the exit code. `contender` had its turn when it happened."""
    expected = isinstance(problem, PacelineError)
    exit_code = problem.exit_code if isinstance(problem, PacelineError) else 1
    failure = {
        "rank": rank,
        "step": step,
        "contender": contender,
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
    """Build and measure the training of this rank, and return its report. A server serves and returns None."""
    import torch

    from paceline.cluster.machine import Machine
    from paceline.comm.connect import connect
    from paceline.comm.position import position
    from paceline.engine.device import find
    from paceline.run.compose.compose import compose
    from paceline.train.build import training_of

    where = position(os.environ)
    torch.set_num_threads(run.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed((run.seed * 0x9E3779B97F4A7C15 + where.rank) % 2**63)  # dropout differs from rank to rank
    device = find(where.local_rank)
    composed = compose(run, Machine(torch.cuda.device_count()))
    comm = connect(where, comm_choice(run, device), run.deadline, device.kind == "cuda", run.socket_buffer)
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


def comm_choice(run: Run, device: Any) -> str:
    """Return the comm to connect. A reference may need a certain one on CPUs, unless the user names another."""
    needed = None if run.reference is None or device.kind != "cpu" else run.reference.comm_on_cpu
    return needed if needed and run.comm == "auto" else run.comm


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
    """Make warm-up steps, then blocks of measured steps, and return the report of this rank."""
    from paceline.train.measurement import Measurement

    measurement = Measurement(run, training, comm, state)
    measurement.warm_up()
    if run.epochs is not None:
        from paceline.train.epochs import train_epochs

        return train_epochs(run, measurement)
    blocks, length = run.repeats, run.steps or 10
    measurement.begin()
    for block in range(blocks):
        measurement.block(length)
        if comm.rank == 0:
            _tell(run, block, blocks, length / measurement.seconds[-1], training)
    measurement.grade(blocks - 1)
    return measurement.report()


def _tell(run: Run, block: int, blocks: int, steps_per_second: float, training: Any) -> None:
    rate = steps_per_second * run.per_worker * run.accumulate
    unit = training.workload.unit
    print(
        f"repeat {block + 1}/{blocks}: {rate:.1f} {unit}/sec per worker, loss {training.losses[-1]:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Other ranks' threads may still hold locks of torch; leaving at once cannot hang.
    os._exit(code)
