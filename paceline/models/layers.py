"""What several convolutional networks share."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn


def initialize(
    model: nn.Module, *, mode: Literal["fan_in", "fan_out"] = "fan_out", linear_std: float | None = None
) -> None:
    """Scale convolutions so that variance survives ReLU (He et al. 2015); biases begin at zero.

    `mode` says on which way: fan_in forward, fan_out backward (the choice where normalization follows).
    Linear layers keep torch's own start unless `linear_std` is given; normalizations begin as identity,
    which is torch's own start too.
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
