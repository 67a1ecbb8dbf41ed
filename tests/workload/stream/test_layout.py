"""Layouts of batches that come from another process: exact, bounded, and never trusted."""

import json
import random

import pytest
import torch

from paceline.errors import WorkloadError
from paceline.workload.stream.layout import LARGEST, Field, describe, fields_of, read, tensor_of, write

BATCH = (torch.randn(4, 3, 2), torch.arange(4), torch.zeros(4, dtype=torch.bool), torch.ones(2, 2).bfloat16())


def test_tensors_come_back_from_their_bytes():
    fields = read(write(fields_of(BATCH)))
    assert fields == fields_of(BATCH)
    for field, tensor in zip(fields, BATCH, strict=True):
        data = bytearray(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        assert torch.equal(tensor_of(data, field), tensor)


def test_empty_tensors_and_scalars_are_tensors_too():
    assert tensor_of(b"", Field("int64", (0, 3))).shape == (0, 3)
    assert tensor_of(bytearray(8), Field("int64", ())).item() == 0


@pytest.mark.parametrize("batch", [{"x": torch.ones(1)}, [], "text", (torch.ones(1), 2)])
def test_batches_that_are_no_tensors_are_refused(batch):
    with pytest.raises(WorkloadError, match="not tuples of tensors"):
        describe(batch, "it")


def test_more_tensors_than_a_batch_may_have_are_refused():
    with pytest.raises(WorkloadError, match="more than 64 tensors"):
        describe([torch.ones(1)] * 65, "it")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no JSON"),
        (b"[" * 60_000, "no JSON"),
        (b"{}", "no JSON"),
        (b'{"tensors": 3}', "no JSON"),
        (b'{"tensors": []}', "0 tensors"),
        (b" " * 70_000, "a header of 70,000 bytes"),
        (json.dumps({"tensors": [{"dtype": "object", "shape": [1]}]}).encode(), "a dtype that is not one of"),
        (json.dumps({"tensors": [{"dtype": ["int8"], "shape": [1]}]}).encode(), "a dtype that is not one of"),
        (json.dumps({"tensors": [{"dtype": "int8", "shape": [-1]}]}).encode(), "a shape that cannot be"),
        (json.dumps({"tensors": [{"dtype": "int8", "shape": [1.5]}]}).encode(), "a shape that cannot be"),
        (json.dumps({"tensors": [{"dtype": "int8", "shape": [True]}]}).encode(), "a shape that cannot be"),
        (json.dumps({"tensors": [{"dtype": "int8", "shape": [1] * 9}]}).encode(), "a shape that cannot be"),
        (json.dumps({"tensors": [{"dtype": "int64", "shape": [LARGEST]}]}).encode(), "more than 1,073,741,824 bytes"),
        (json.dumps({"tensors": [{"dtype": "int8", "shape": [2**30, 2**30]}]}).encode(), "more than"),
    ],
)
def test_a_wrong_layout_is_refused_with_what_is_wrong(text, why):
    with pytest.raises(ValueError, match=why):
        read(text)


def test_a_damaged_layout_raises_a_value_error_and_nothing_else():
    dice, text = random.Random(3), write(fields_of(BATCH))
    for _ in range(2000):
        damaged = bytearray(text)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            read(bytes(damaged[: dice.randrange(len(damaged) + 1)]))
        except ValueError:
            pass
