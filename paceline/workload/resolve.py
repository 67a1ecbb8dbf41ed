"""Build the Workload that a text names.

resnet50(bias=true)       a word of the menu, with settings
torchvision:resnet18      a classifier of torchvision
my_package.nets:small     a user's own function
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from paceline.errors import WorkloadError
from paceline.menu.grammar import Spec, parse
from paceline.menu.menu import call
from paceline.types import Workload
from paceline.workload.models import MENU
from paceline.workload.own import own, with_flags

_ONE_AT_A_TIME = threading.RLock()


def build(
    text: str,
    *,
    classes: int | None = None,
    image_size: int | None = None,
    sequence_length: int | None = None,
    seed: int = 0,
    fit: Mapping[str, int] | None = None,
) -> Workload:
    """Build the workload that a text describes; the same seed gives the same initial parameters.

    A flag that is None leaves the model's default; one that the model does not accept is an error. `fit` holds the
    settings that match the samples of a source, which are used as defaults if the model accepts them.
    """
    flags = {"classes": classes, "image_size": image_size, "sequence_length": sequence_length}
    with seeded(seed):
        workload = _build(parse(text), {key: value for key, value in flags.items() if value is not None}, fit or {})
    _check(text, workload)
    return workload


def _build(spec: Spec, flags: Mapping[str, int], fit: Mapping[str, int]) -> Workload:
    place, colon, name = spec.word.partition(":")
    if not colon:
        return call(MENU.load(spec.word), with_flags(spec, flags), **fit)
    if place == "torchvision":
        from paceline.workload.torchvision import torchvision

        return call(partial(torchvision, name), with_flags(spec, flags), **fit)
    return own(spec, flags, fit)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator, from which initializers draw, inside the with-block, and restore it afterwards.

    torch.manual_seed would also seed every GPU, and models are built on the CPU. A lock serializes callers, because
    ranks that are threads share the generator.
    """
    import torch

    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _check(text: str, workload: Workload) -> None:
    from torch import nn

    if not isinstance(workload.model, nn.Module):
        raise WorkloadError(
            f"model {text}", why=f"its network is a {type(workload.model).__name__}, not a torch.nn.Module"
        )
    if not any(parameter.requires_grad for parameter in workload.model.parameters()):
        raise WorkloadError(
            f"model {text}",
            why="it has no trainable parameter",
            remedy="leave requires_grad on for at least one parameter",
        )
