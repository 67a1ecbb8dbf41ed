"""Initialization that several convolutional networks share."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn


def initialize(
    model: nn.Module, *, mode: Literal["fan_in", "fan_out"] = "fan_out", linear_std: float | None = None
) -> None:
    """Scale convolutions so that variance survives ReLU (He et al. 2015); biases start at zero.

    `mode` selects the direction: fan_in for forward, fan_out for backward (used where normalization follows).
    Linear layers keep torch's initialization unless `linear_std` is set; normalizations start as identity,
    which is torch's default, too.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")
            _zero(layer.bias)
        elif isinstance(layer, nn.Linear) and linear_std is not None:
            nn.init.normal_(layer.weight, std=linear_std)
            _zero(layer.bias)


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)
