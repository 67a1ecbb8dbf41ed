"""Measure the profiles that benchmarks replay: one worker, one thread, real compute.

python benchmarks/make_profiles.py [resnet50] [bert_base]
"""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.measure.measure import measure
from paceline.run.run import Run
from paceline.workload.profile import StepProfile, write

BATCHES = {"resnet50": 4, "bert_base": 2}
FOLDER = Path(__file__).with_name("profiles")


def main() -> None:
    for name in sys.argv[1:] or BATCHES:
        run = Run(model=name, batch_size=BATCHES[name], threads=1, warmup=3, steps=2, repeats=1)
        record, _ = measure(run)
        found = getattr(record, "profile", None)
        if not found:
            sys.exit("this paceline keeps no profile in its records")
        write(FOLDER / f"{name}.json", StepProfile.model_validate(found))
        print(f"{FOLDER / name}.json")


if __name__ == "__main__":
    main()
