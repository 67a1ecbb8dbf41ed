"""Evaluate the model between steps: averaged statistics, test accuracy, distance between replicas.

BatchNorm statistics are local while training and averaged over ranks for evaluation and checkpoints. Rank k mod size
evaluates test batch k:

    test part   | batch 0 | batch 1 | batch 2 | batch 3 | ... | the rest     |
                  rank 0    rank 1    rank 0    rank 1           every sample once
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from paceline.comm.sums import wide
from paceline.comm.transport import Comm

if TYPE_CHECKING:
    from paceline.train.loop import Training

PIECE = 1 << 20  # elements
BATCH = 250  # test samples per batch: independent of the number of workers, because the batch size affects rounding


def statistics(model: nn.Module) -> list[Tensor]:
    """Return running means and variances, in the same order on every rank."""
    return [
        buffer
        for module in model.modules()
        if isinstance(module, _NormBase)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]


@contextlib.contextmanager
def averaged_statistics(model: nn.Module, comm: Comm) -> Iterator[None]:
    """Use the mean of all ranks' BatchNorm statistics inside the with-block; restore this rank's own afterwards."""
    with _averaged(statistics(model), comm, "BatchNorm statistics"):
        yield


@contextlib.contextmanager
def averaged_parameters(model: nn.Module, comm: Comm) -> Iterator[None]:
    """Use the mean of all ranks' parameters inside the with-block, for rules whose replicas differ."""
    with _averaged([parameter.detach() for parameter in model.parameters()], comm, "parameters"):
        yield


@contextlib.contextmanager
def _averaged(tensors: Sequence[Tensor], comm: Comm, what: str) -> Iterator[None]:
    kept = [tensor.clone() for tensor in tensors]
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in chosen]).to(wide(dtype)) / comm.size
        total = torch.empty_like(flat)
        comm.all_sum(flat, total, what).wait()
        for tensor, part in zip(chosen, total.split([t.numel() for t in chosen]), strict=True):
            tensor.copy_(part.view_as(tensor))
    try:
        yield
    finally:
        for tensor, own in zip(tensors, kept, strict=True):
            tensor.copy_(own)


def accuracy(training: Training, comm: Comm) -> dict[str, float] | None:
    """Return the accuracy on the test samples and their mean loss, or None without test samples or a grade function.

    If the grade function reports it, also return the fraction of samples whose class is among the best five.

    The same parameters give the same bits for any number of workers, because the batches are the same, each rank writes
    its own rows of one table, and the rows are added in order.
    """
    if training.tests is None or training.workload.grade is None:
        return None
    count, model = len(training.tests), training.workload.model
    rows = torch.zeros(-(-count // BATCH), 3, dtype=torch.float64)
    mean = averaged_parameters(model, comm) if training.pace.replicas_differ else contextlib.nullcontext()
    with training.pace.averaged(), mean, in_eval(model), torch.no_grad():
        for k in range(comm.rank, len(rows), comm.size):
            rows[k] = _graded(training, torch.arange(k * BATCH, min(count, (k + 1) * BATCH)))
    table = torch.empty_like(rows)
    comm.all_sum(rows.view(-1), table.view(-1), "accuracy").wait()
    right, five, loss = table.sum(0).tolist()
    grade = {"value": right / count, "loss": loss / count, "samples": count}
    return grade if math.isnan(five) else {**grade, "top5": five / count}


def _graded(training: Training, ids: Tensor) -> Tensor:
    """Return the number of correct predictions, the number that are right in the best five, and the sum of losses.

    The second is NaN if the grade function does not report it.
    """
    grade, tests = training.workload.grade, training.tests
    assert grade is not None
    assert tests is not None
    with training.autocast():
        right, loss = grade(training.workload.model, training.place(tests(ids)))
    columns = right.double().view(len(right), -1).sum(0)
    five = columns[1] if len(columns) > 1 else columns.new_tensor(math.nan)
    return torch.stack([columns[0], five, loss.double().sum()]).cpu()


@contextlib.contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode inside the with-block, and restore every module's mode afterwards."""
    modes, whole = [(module, module.training) for module in model.modules()], model.training
    model.eval()
    try:
        yield
    finally:
        model.train(whole)  # for modules that override train(); the loop restores those kept in eval()
        for module, training in modes:
            module.training = training


def replicas(model: nn.Module, comm: Comm, *, distance: bool = True) -> dict[str, Any]:
    """Return whether all ranks hold the same bits, and the largest distance to the mean, relative to the mean's norm.

    Means are computed only if bits differ, piece by piece, so that no second model has to fit into memory. They move
    twice the bytes of the model, so a caller that does not need the distance leaves them out.
    """
    device = next(model.parameters()).device
    code = torch.tensor([_checksum(model)], dtype=torch.int64, device=device)
    codes = torch.zeros(comm.size, dtype=torch.int64, device=device)
    comm.all_gather(code, codes, "checksums").wait()
    if len(set(codes.tolist())) == 1:
        return {"identical": True, "distance": 0.0}
    if not distance:
        return {"identical": False}
    apart, norm = 0.0, 0.0
    for piece in map(torch.Tensor.double, _pieces(model)):
        mean = torch.empty_like(piece)
        comm.all_sum(piece / comm.size, mean, "replicas").wait()
        apart += float((piece - mean).square().sum())
        norm += float(mean.square().sum())
    share = torch.tensor([(apart / max(norm, 1e-60)) ** 0.5], dtype=torch.float64, device=device)
    distances = torch.zeros(comm.size, dtype=torch.float64, device=device)
    comm.all_gather(share, distances, "distances").wait()
    return {"identical": False, "distance": float(distances.max())}


def _checksum(model: nn.Module) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for piece in _pieces(model):
        digest.update(piece.cpu().contiguous().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _pieces(model: nn.Module) -> Iterator[Tensor]:
    """Yield all parameters, a few megabytes at a time."""
    for parameter in model.parameters():
        yield from parameter.detach().reshape(-1).split(PIECE)
