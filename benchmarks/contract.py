"""What the contract of DDP costs: training steps of this checkout beside those of another one.

    git worktree add ../before COMMIT
    python benchmarks/contract.py ../before [--only wide] [--starts 5] [--pairs 40] [--json F]

The loop is plain: forward, backward, `pace.step()`; nobody writes into p.grad. Jobs of both checkouts take turns, see
side_by_side.py. The ratio is the seconds of a step here divided by those there, with its 95 % interval over starts;
wanted is at most 1.01. `narrow` and `wide` are layers that compute little; the others are the models of against_ddp.py.

The second figure is for loops that write p.grad in place, in this checkout alone: by how much a step is longer than a
step whose p.grad nobody writes, without the writing itself, as a multiple of the time of one copy of the gradients.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from side_by_side import one_start

from paceline.measure.stats.intervals import FEWEST, Interval, log_interval, mean_interval

# words of the model, and steps of a turn
MODELS: dict[str, tuple[tuple[object, ...], int]] = {
    "narrow": (("layers", 24, 192), 30),  # 3.5 MB of gradients
    "wide": (("layers", 6, 2048), 4),  # 101 MB
    "mobilenet_v2": (("mobilenet_v2", 64, "image_size"), 1),
    "resnet50": (("resnet50", 16, "image_size"), 1),
    "resnet50-64": (("resnet50", 64, "image_size"), 1),
    "vgg16": (("vgg16", 64, "image_size"), 1),
    "bert_base": (("bert_base", 4, "sequence_length"), 1),
}
SCRIPT = """
import time
import torch, paceline

torch.set_num_threads(1)
torch.manual_seed(0)
worker = paceline.join()


def of_layers(layers, width):
    model = torch.nn.Sequential(*(m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.Tanh())))
    x = torch.randn(16, width)
    return model, lambda: model(x).square().mean()


def of_menu(name, batch, setting):
    try:
        from paceline.workload.resolve import build
    except ImportError:  # an older checkout
        from paceline.models.resolve import build
    workload = build(name, **{setting: 32 if setting == "image_size" else 64})
    samples = workload.batch(torch.arange(batch))
    return workload.model, lambda: workload.loss(workload.model, samples)


kind, first, second = sys.argv[1:4]
model, loss = of_layers(int(first), int(second)) if kind == "layers" else of_menu(kind, int(first), second)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))


def plain():
    loss().backward()
    pace.step()


def written():
    loss().backward()
    torch._foreach_mul_([p.grad for p in model.parameters()], 1.0)
    pace.step()


def seconds(act):
    def middle(count):
        times = []
        for _ in range(count):
            began = time.perf_counter()
            act()
            times.append(time.perf_counter() - began)
        return sorted(times)[count // 2]

    return middle


def write():
    torch._foreach_mul_(own, 1.0)


def copy():
    torch._foreach_copy_(other, own)


for _ in range(5):
    plain()
own = [torch.ones_like(p) for p in model.parameters()]
other = [torch.ones_like(p) for p in own]
take_turns(worker, {act.__name__: seconds(act) for act in (plain, written, write, copy)})
"""


def compare(before: Path, model: str, pairs: int, starts: int) -> dict[str, Any]:
    words, count = MODELS[model]
    alone = {"plain": 3 * count + 6, "written": 3 * count + 6, "write": 9, "copy": 9}
    runs = [
        one_start(before, SCRIPT, {"plain": count}, words=words, pairs=pairs, alone=alone if model == "wide" else {})
        for _ in range(starts)
    ]
    steps = [row["plain"] for row, _ in runs]
    copies = [(own["written"] - own["plain"] - own["write"]) / own["copy"] for _, own in runs if own]
    return {
        "model": model,
        "starts": starts,
        "pairs": pairs,
        "before": median(step.before for step in steps),
        "after": median(step.here for step in steps),
        "ratio": vars(log_interval([step.log for step in steps])),
        "copies": vars(mean_interval(copies)) if copies else None,
    }


def shown(row: dict[str, Any]) -> str:
    ratio = Interval(**row["ratio"])
    text = (
        f"{row['model']:<12} {1e3 * row['before']:8.2f} ms before {1e3 * row['after']:8.2f} ms here   "
        f"ratio {ratio.centre:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]   {row['starts']} starts of {row['pairs']} pairs"
    )
    if row["copies"] is None:
        return text
    copies = Interval(**row["copies"])
    return f"{text}   written: {copies.centre:+.2f} copies [{copies.low:+.2f}, {copies.high:+.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a worktree of the code before")
    parser.add_argument("--only", choices=MODELS, action="append", help="may be repeated; all by default")
    parser.add_argument("--starts", type=int, default=5, help=f"starts of both checkouts, at least {FEWEST}")
    parser.add_argument("--pairs", type=int, default=40, help="turns of each checkout in a start")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.starts < FEWEST or not (options.before / "paceline").is_dir():
        parser.error(f"--starts is at least {FEWEST}, and the first argument a worktree of paceline")
    rows = []
    for model in options.only or MODELS:
        rows.append(compare(options.before.resolve(), model, options.pairs, options.starts))
        print(shown(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
