"""Encode and decode of every compressor on one core, beside the plain torch expression of the same thing.

One rank, one thread, a gradient of 25.6 million float32 numbers: what a rank packs, and one payload unpacked. All
contenders take turns, each round in another order; seconds are those that the CPU spent, so that other programs on
the machine count less. GB/s are of gradient. DDP's own hooks run on a DDP of one rank, and ours in the same place.

    python benchmarks/compressors.py [--only sign topk] [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from harness import show, verdict
from torch import Tensor

from paceline.strategy import compressors
from paceline.types import Chunk, Layout, Slot

ROWS, COLUMNS = 3200, 8000
NUMEL = ROWS * COLUMNS
K, LEVELS, BUCKET = NUMEL // 100, 7, 512
_WEIGHTS = 2 ** torch.arange(8, dtype=torch.uint8)
_SHIFTS = torch.arange(8, dtype=torch.uint8)

Call = Callable[[], Any]


class Alone:
    """A comm of one rank, which a codec needs to be bound."""

    rank, size, shares_results = 0, 1, False

    def allocate(self, numel: int, dtype: Any) -> Tensor:
        return torch.zeros(numel, dtype=dtype)

    allocate_result = allocate


def ours(text: str, x: Tensor) -> Call:
    layout = Layout((Slot("weight", NUMEL, (ROWS, COLUMNS)),), 4, 0)
    codec = compressors.MENU.make(text).bind(layout, Alone(), torch.float32, False)
    out, chunk = torch.zeros(NUMEL), Chunk(0, 0, NUMEL)

    def call() -> None:
        for payload in codec.rounds(chunk, x, out):
            payload.out.copy_(payload.tensor.view_as(payload.out))

    return call


# the same things, as one would write them in torch -------------------------------------------------------


def bits(negative: Tensor) -> Tensor:
    return (negative.view(-1, 8) * _WEIGHTS).sum(dim=1, dtype=torch.uint8)


def from_bits(packed: Tensor) -> Tensor:
    return ((packed[:, None] >> _SHIFTS) & 1).view(-1).bool()


def sign(x: Tensor) -> Tensor:
    return torch.where(from_bits(bits(x < 0)), -1.0, 1.0)


def efsign(x: Tensor) -> Tensor:
    scale = x.abs().mean()
    return torch.where(from_bits(bits(x < 0)), -scale, scale)


def onebit(x: Tensor) -> Tensor:
    negative = x < 0
    low, high = x[negative].mean(), x[~negative].mean()
    return torch.where(from_bits(bits(negative)), low, high)


def topk(x: Tensor) -> Tensor:
    where = x.abs().topk(K, sorted=False).indices
    return torch.zeros_like(x).scatter_(0, where, x[where])


def randomk(x: Tensor) -> Tensor:
    where = torch.randperm(NUMEL)[:K]
    return torch.zeros_like(x).scatter_(0, where, x[where] * (NUMEL / K))


def threshold(x: Tensor) -> Tensor:
    where = (x.abs() >= 2.576).nonzero().view(-1)
    return torch.zeros_like(x).scatter_(0, where, x[where])


def quantized(x: Tensor, levels: int, bucket: int, norms: Tensor) -> Tensor:
    rows = x.view(-1, bucket)
    level = (rows.abs() / norms * levels + torch.rand_like(rows)).floor().clamp_(max=levels).to(torch.uint8)
    width = levels.bit_length() + 1
    codes = (level | ((rows < 0).to(torch.uint8) << (width - 1))).view(-1, 8 // width)
    packed = sum(codes[:, k] << (width * k) for k in range(8 // width))
    codes = torch.stack([(packed >> (width * k)) & ((1 << width) - 1) for k in range(8 // width)], dim=1).view(-1)
    level = (codes & ((1 << (width - 1)) - 1)).float()
    return (torch.where(codes >> (width - 1) > 0, -level, level).view(-1, bucket) * norms / levels).view(-1)


def qsgd(x: Tensor) -> Tensor:
    return quantized(x, LEVELS, BUCKET, x.view(-1, BUCKET).norm(dim=1, keepdim=True))


def terngrad(x: Tensor) -> Tensor:
    return quantized(x, 1, 2048, x.view(-1, 2048).abs().amax(dim=1, keepdim=True))


def natural(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x.abs())
    exponent = exponent - (torch.rand_like(x) >= 2 * mantissa - 1).int() + 126
    packed, signs = exponent.to(torch.uint8), bits(x < 0)
    return torch.where(from_bits(signs), -1.0, 1.0) * torch.exp2(packed.float() - 126)


class PowerSgd:
    def __init__(self) -> None:
        self.q = torch.randn(COLUMNS, 2)

    def __call__(self, x: Tensor) -> Tensor:
        matrix = x.view(ROWS, COLUMNS)
        p = torch.linalg.qr(matrix @ self.q).Q
        self.q = matrix.t() @ p
        return p @ self.q.t()


class Feedback:
    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.memory = inner, torch.zeros(NUMEL)

    def __call__(self, x: Tensor) -> Tensor:
        total = x + self.memory
        sent = self.inner(total).view(-1)
        self.memory = total - sent
        return sent


class Dgc:
    def __init__(self) -> None:
        self.velocity, self.owed = torch.zeros(NUMEL), torch.zeros(NUMEL)

    def __call__(self, x: Tensor) -> Tensor:
        self.velocity = 0.9 * self.velocity + x
        self.owed = self.owed + self.velocity
        where = self.owed.abs().topk(K, sorted=False).indices
        sent = torch.zeros_like(x).scatter_(0, where, self.owed[where])
        self.velocity[where] = 0
        self.owed[where] = 0
        return sent


def cases() -> dict[str, tuple[str, Callable[[Tensor], Tensor]]]:
    """Word: how ours is written, and the plain expression."""
    return {
        "cast": ("cast(fp16)", lambda x: x.half().float()),
        "sign": ("sign", sign),
        "efsign": ("efsign", efsign),
        "onebit": ("onebit", onebit),
        "topk": ("topk(ratio=0.01)", topk),
        "feedback topk": ("feedback(topk(ratio=0.01))", Feedback(topk)),
        "randomk": ("randomk(ratio=0.01)", randomk),
        "threshold": ("threshold(above=2.576)", threshold),
        "dgc": ("dgc(ratio=0.01, warmup=0)", Dgc()),
        "qsgd": (f"qsgd(levels={LEVELS}, bucket={BUCKET})", qsgd),
        "terngrad": ("terngrad(bucket=2048)", terngrad),
        "natural": ("natural", natural),
        "powersgd": ("powersgd(rank=2)", PowerSgd()),
        "feedback powersgd": ("feedback(powersgd(rank=2))", Feedback(PowerSgd())),
    }


# DDP's own hooks ------------------------------------------------------------------------------------------


def hooks() -> dict[str, tuple[Call, Call, list[float], list[float]]]:
    """Word: a backward with our hook, one with DDP's, and where each hook writes its seconds."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    import paceline

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def with_hook(state: Any, hook: Any) -> tuple[Call, list[float]]:
        model, spent = torch.nn.Linear(COLUMNS, ROWS, bias=False), []
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        x = torch.randn(1, COLUMNS)

        def timed(state: Any, bucket):  # type: ignore[no-untyped-def]
            began = time.process_time()
            future = hook(state, bucket)
            future.wait()
            spent.append(time.process_time() - began)
            return future

        ddp.register_comm_hook(state, timed)
        return lambda: ddp(x).sum().backward(), spent

    low_rank = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    pairs = {
        "fp16 hook": (paceline.comm_hook("cast(fp16)"), (None, default_hooks.fp16_compress_hook)),
        "PowerSGD hook": (paceline.comm_hook("feedback(powersgd(rank=2))"), (low_rank, powerSGD_hook.powerSGD_hook)),
    }
    found = {}
    for word, (mine, theirs) in pairs.items():
        (call, spent), (other, their_spent) = with_hook(*mine), with_hook(*theirs)
        found[word] = (call, other, spent, their_spent)
    return found


# measuring ------------------------------------------------------------------------------------------------


def timed(call: Call) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def measure(call: Call, plain: Call, rounds: int) -> tuple[float, float]:
    """Seconds of both, medians over rounds that begin with the one or the other."""
    call(), plain()
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            seconds[which].append(timed((call, plain)[which]))
    return median(seconds[0]), median(seconds[1])


def measure_hooks(entry: tuple[Call, Call, list[float], list[float]], rounds: int) -> tuple[float, float]:
    call, other, spent, their_spent = entry
    for number in range(rounds + 3):
        for which in (call, other) if number % 2 else (other, call):
            which()
    return median(spent[3:]), median(their_spent[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--quick", action="store_true", help="few rounds; figures, not evidence")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if asked.quick else 9
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0))
    found: dict[str, tuple[float, float]] = {}
    for word, (text, plain) in cases().items():
        if not asked.only or word in asked.only:
            found[word] = measure(ours(text, x), lambda plain=plain: plain(x), rounds)
    if not asked.only or "hooks" in asked.only:
        found.update({word: measure_hooks(entry, rounds) for word, entry in hooks().items()})
    gigabytes = 4 * NUMEL / 1e9
    rows = [
        (word, f"{mine * 1e3:.0f}", f"{plain * 1e3:.0f}", f"{gigabytes / mine:.2f}", f"{gigabytes / plain:.2f}")
        for word, (mine, plain) in found.items()
    ]
    print(f"{NUMEL:,} numbers, CPU time, median of {rounds} rounds; plain is torch's expression or DDP's own hook")
    show(("compressor", "ours ms", "plain ms", "ours GB/s", "plain GB/s"), rows)
    print()
    for word, (mine, plain) in found.items():
        print(verdict(f"{word}, times as fast as plain", plain / mine, 3 if word == "topk" else 1))
    if "sign" in found:
        print(verdict("sign, GB/s of gradient per core", gigabytes / found["sign"][0], 2))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
