"""What every compressor promises, over its MENU."""

import pytest
import torch

from paceline import compressors
from paceline.comm.thread import run_ranks
from paceline.types import Chunk, Layout, Slot

TEXTS = (*compressors.MENU.names(), "cast(fp16)")


def through(text, vector, size=1):
    """What comes out when every rank sends `vector / size`, with the bytes of every payload."""

    def work(comm):
        numel = vector.numel()
        codec = compressors.MENU.make(text).bind(Layout((Slot("x", numel),), 4, 0), comm, torch.float32, True)
        if codec is None:
            return vector.clone(), [vector.nbytes]
        dst, sent = torch.full_like(vector, float("nan")), []
        for payload in codec.rounds(Chunk(0, 0, numel), vector / size, dst):
            sent.append(payload.tensor.nbytes)
            comm.all_sum(payload.tensor, payload.out).wait()
        return dst, sent

    return run_ranks(size, work)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("numel", [1, 2, 63, 1000])
def test_wire_bytes_are_the_declared_ones(text, numel):
    _, sent = through(text, torch.randn(numel, generator=torch.Generator().manual_seed(0)))[0]
    assert sum(sent) == compressors.MENU.make(text).nbytes(Layout((Slot("x", numel),), 4, 0), Chunk(0, 0, numel))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_zero_in_gives_zero_out(text, size):
    for out, _ in through(text, torch.zeros(100), size):
        assert torch.equal(out, torch.zeros(100))


@pytest.mark.parametrize("text", TEXTS)
def test_the_global_random_state_is_never_touched(text):
    before = torch.get_rng_state()
    through(text, torch.arange(100.0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("text", "error"), [("cast(bf16)", 2**-8), ("cast(fp16)", 2**-11)])
def test_cast_rounds_once_and_no_more(text, error):
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    (out, _), *_ = through(text, vector)
    assert torch.all((out - vector).abs() <= error * vector.abs())


def test_cast_does_not_overflow_where_the_mean_does_not():
    vector = torch.full((10,), 60000.0)  # near the largest fp16; the plain sum of 3 would be infinite
    for out, _ in through("cast(fp16)", vector, size=3):
        assert torch.isfinite(out).all()


def test_cast_leaves_half_precision_alone():
    assert compressors.MENU.make("cast").bind(Layout((Slot("x", 4),), 2, 0), None, torch.float16, True) is None
