"""What every compressor promises, over its MENU."""

import math

import numpy as np
import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.errors import NonFinite, WorkloadError, WrongCommand
from paceline.run.axes import Axes
from paceline.run.compose.compression import contractive_feedback, notes
from paceline.strategy import compressors
from paceline.strategy.compressors._sparse import pack, unpack
from paceline.strategy.compressors.topk import largest
from paceline.strategy.exchanges.allreduce import AllReduce
from paceline.types import Chunk, Lane, Layout, Slot, Unit, View

# dgc sends more in its warm-up than it declares for the time after it.
WRITTEN = {"dgc": "dgc(warmup=0)", "feedback": "feedback(topk(ratio=0.1))"}
TEXTS = (*(WRITTEN.get(name, name) for name in compressors.MENU.names()), "cast(fp16)", "sign(momentum=0.9)")
CODED = tuple(text for text in TEXTS if text != "none")
LANE = Lane("x", needs_consensus=True, lossy_ok=True)


def accepted(name):
    """Whether feedback takes it."""
    member = compressors.MENU.make(f"feedback({WRITTEN.get(name, name)})")
    axes = Axes(rule=None, exchange=None, schedule=None, compressor=member, membership=None)
    return not list(contractive_feedback(axes))


INNER = tuple(name for name in compressors.MENU.names() if accepted(name))


def layout_of(*shapes, tail=0):
    slots = tuple(Slot(f"t{k}", math.prod(shape), shape) for k, shape in enumerate(shapes))
    return Layout(slots, 4, tail)


class Counted:
    """A codec that counts the bytes of its payloads."""

    def __init__(self, codec):
        self.codec, self.sent = codec, []

    def rounds(self, chunk, src, dst):
        for payload in self.codec.rounds(chunk, src, dst):
            if payload.combine != "pass" or payload.target is not None:
                self.sent.append(payload.tensor.nbytes)
            yield payload


def bound(text, layout, comm, dtype=torch.float32):
    return compressors.MENU.make(text).bind(layout, comm, dtype, True)


def step(comm, layout, codec, source, number=0):
    """One chunk over all ranks; the result and the bytes of every payload."""
    channel = AllReduce().join(comm, View(comm.rank, comm.size), LANE)
    counted, dst = Counted(codec), torch.full_like(source, float("nan"))
    chunk = Chunk(0, 0, layout.numel)
    channel.start(Unit(number, 0), chunk, source, dst, None if codec is None else counted).wait()
    return dst, counted.sent


def through(text, vector, size=1, layout=None):
    """What comes out when every rank sends `vector / size`, with the bytes of every payload."""

    def work(comm):
        where = layout or layout_of((vector.numel(),))
        codec = bound(text, where, comm, vector.dtype)
        return step(comm, where, codec, vector / size)

    return run_ranks(size, work)


def noise(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("text", CODED)
@pytest.mark.parametrize("shape", [(1,), (2,), (63,), (1000,), (40, 25)])
def test_wire_bytes_are_the_declared_ones(text, shape):
    layout, member = layout_of(shape, (33,), tail=2), compressors.MENU.make(text)
    whole = Chunk(0, 0, layout.numel)
    _, sent = through(text, noise(layout.numel), size=2, layout=layout)[0]
    assert sum(sent) == member.nbytes(layout, whole) if text != "threshold" else sum(sent) <= 8 + 4 * layout.numel
    assert sent[-1] == 8, "the tail travels as it is"
    if text != "threshold":
        assert sent == [wire.nbytes for wire in member.wires(layout, whole, 2)]


@pytest.mark.parametrize("text", CODED)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_zero_in_gives_zero_out(text, size):
    expected = torch.ones(100) if text.startswith("sign") else torch.zeros(100)  # a sign has no zero: it is +1
    layout = layout_of((10, 6), (40,))
    for out, _ in through(text, torch.zeros(100), size, layout):
        assert torch.equal(out, expected)


@pytest.mark.parametrize("text", CODED)
def test_the_tail_arrives_exactly_and_all_ranks_get_the_same(text):
    layout = layout_of((30, 20), (17,), (1,), tail=3)

    def work(comm):
        source = noise(layout.numel, comm.rank) / comm.size
        source[layout.body :] = torch.tensor([1.0, comm.rank, 0.1])
        return step(comm, layout, bound(text, layout, comm), source)[0]

    found = run_ranks(3, work)
    assert all(torch.equal(out, found[0]) for out in found)
    assert torch.allclose(found[0][layout.body :], torch.tensor([3.0, 3.0, 0.3]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("text", CODED)
def test_the_global_random_state_is_never_touched(text):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    through(text, noise(600), layout=layout_of((20, 30)))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize("text", CODED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_reported_with_the_name_of_the_tensor(text, bad):
    vector = noise(100)
    vector[70] = bad
    what = "what it sends" if text.startswith("cast") else "the gradient"  # cast also rounds parameters
    with pytest.raises(NonFinite, match=f"rank 0: {what} of t1 is not finite: 1 of 40 numbers"):
        through(text, vector, layout=layout_of((60,), (40,)))


@pytest.mark.parametrize("text", [text for text in CODED if text != "cast(fp16)"])
def test_large_finite_numbers_are_no_infinity(text):
    assert torch.isfinite(through(text, torch.full((200,), 3e36))[0][0]).all()


@pytest.mark.parametrize(("text", "large"), [("cast(fp16)", -1e5), ("cast(bf16)", 3.4e38)])
def test_what_overflows_by_the_cast_is_reported(text, large):
    vector = noise(100)
    vector[[70, 80]] = large
    with pytest.raises(NonFinite, match=r"rank 0: what it sends of t1 does not fit into ..16: 2 of 40 numbers"):
        through(text, vector, layout=layout_of((60,), (40,)))


def test_a_sum_that_overflows_is_reported_on_every_rank():
    vector = noise(100)
    vector[[70, 80]] = 1e5  # each rank sends half of it, which fits
    told = "the sum of all ranks of t1 does not fit into fp16: 2 of 40 numbers are above 65504"
    with pytest.raises(NonFinite, match=told):
        through("cast(fp16)", vector, 2, layout=layout_of((60,), (40,)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e5])
def test_beside_a_loss_scale_infinity_travels_with_cast(bad):
    vector, layout = noise(100), layout_of((60,), (40,))
    vector[70] = bad

    def work(comm):
        codec = compressors.MENU.make("cast(fp16)").scaled().bind(layout, comm, torch.float32, True)
        return step(comm, layout, codec, vector)[0]

    assert torch.isfinite(run_ranks(1, work)[0]).logical_not().nonzero().view(-1).tolist() == [70]


OTHER = [(text, torch.float64) for text in CODED]
OTHER += [(text, torch.bfloat16) for text in CODED if not text.startswith("cast")]  # which has nothing to do there


@pytest.mark.parametrize(("text", "dtype"), OTHER)
def test_other_dtypes_go_through_float32(text, dtype):
    (out, _), *_ = through(text, noise(640).to(dtype), 2, layout_of((20, 32)))
    assert out.dtype is dtype
    assert torch.isfinite(out.float()).all()


# feedback ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("size", [1, 3])
def test_feedback_loses_nothing_over_fifty_steps(inner, size):
    """Sum of gradients = sum of what was sent + last residuals; and residuals stay within bounds."""
    layout = layout_of((24, 16), (50,), tail=2)
    text = f"feedback({inner})" if inner not in ("topk", "gtopk", "randomk") else f"feedback({inner}(ratio=0.05))"

    def work(comm):
        codec = bound(text, layout, comm)
        given, got, norms = torch.zeros(layout.body).double(), torch.zeros(layout.body).double(), []
        for number in range(50):
            source = noise(layout.numel, 1000 * number + comm.rank) / comm.size
            out, _ = step(comm, layout, codec, source, number)
            given += source[: layout.body]
            got += out[: layout.body]
            norms.append(float(residual(codec, layout).norm()))
        return given, got, residual(codec, layout).double(), norms

    found = run_ranks(size, work)
    given, owed = (sum(one[k] for one in found) for k in (0, 2))
    assert float((given - found[0][1] - owed).abs().max()) < 1e-4  # 50 float32 additions of numbers up to 30
    for one in found:
        # 50 gradients of norm g that all stayed home would be about 7 g by chance, 50 g at worst
        assert max(one[3]) < 50 * (layout.body**0.5) / size
        assert max(one[3][25:]) < 3 * max(one[3][:25]) + 1e-3


def residual(codec, layout):
    memory = codec.state()["memory"]
    return torch.cat([memory[slot.name] for slot in layout.slots])


def test_feedback_takes_the_contractive_and_refuses_the_others():
    refused = set(compressors.MENU.names()) - set(INNER)
    assert refused >= {"none", "cast", "feedback", "sign", "dgc"}
    for name in refused:
        member = compressors.MENU.make(WRITTEN.get(name, name))
        assert member.loss != "lossy" or not (member.contractive or member.shrinks) or member.remembers


def test_around_a_scaled_randomk_the_residual_would_explode():
    """The negative control of the contractive form: the same feedback by hand around the unbiased operator."""
    owed = torch.zeros(1000)
    layout = layout_of((1000,))

    def work(comm):
        codec = bound("randomk(ratio=0.01)", layout, comm)
        nonlocal owed
        for number in range(50):
            owed = owed + noise(1000, number)
            owed = owed - step(comm, layout, codec, owed)[0]
        return float(owed.norm())

    assert run_ranks(1, work)[0] > 1e6


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_gtopk_conserves_mass(size):
    """sum_p (g_p + e_p) = P ghat + sum_p e_p', at every step."""
    layout = layout_of((200,))

    def work(comm):
        codec, trace = bound("feedback(gtopk(ratio=0.02))", layout, comm), []
        for number in range(10):
            source = noise(200, 100 * number + comm.rank) / comm.size
            before = residual(codec, layout)
            out, _ = step(comm, layout, codec, source, number)
            trace.append((source + before, out, residual(codec, layout)))
        return trace

    for ranks in zip(*run_ranks(size, work), strict=True):
        had, left = (sum(rank[k].double() for rank in ranks) for k in (0, 2))
        assert float((had - ranks[0][1] - left).abs().max()) < 1e-5
        assert int((ranks[0][1] != 0).sum()) <= 4
        assert all(torch.equal(rank[1], ranks[0][1]) for rank in ranks)


def test_gtopk_of_the_published_kind_would_lose_mass():
    """A rank that puts back only what is not in the outcome loses what another pair let survive."""
    layout = layout_of((4,))
    # k = 1; the 5 of rank 0 is dropped in the first merge, and its place comes back with the 9 of rank 2
    vectors = torch.tensor([[5.0, 0, 0, 0], [0, 6.0, 0, 0], [9.0, 0, 0, 0], [0, 0, 1.0, 0]])

    def work(comm):
        codec = bound("feedback(gtopk(ratio=0.25))", layout, comm)
        return step(comm, layout, codec, vectors[comm.rank])[0], residual(codec, layout)

    found = run_ranks(4, work)
    outcome, kept = found[0][0], sum(owed for _, owed in found)
    put_back = torch.where(outcome == 0, vectors, 0.0).sum(dim=0)
    assert outcome.tolist() == [9.0, 0.0, 0.0, 0.0]
    assert (vectors.sum(dim=0) - outcome - put_back).tolist() == [5.0, 0.0, 0.0, 0.0]
    assert torch.equal(vectors.sum(dim=0), outcome + kept)


# state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*CODED, *(f"feedback({name})" for name in INNER)])
def test_what_is_saved_and_restored_goes_on_the_same(text):
    layout = layout_of((20, 16), (50,), tail=2)

    def work(comm):
        codec, outs = bound(text, layout, comm), []
        for number in range(6):
            if number == 3:
                saved, codec = codec.state(), bound(text, layout, comm)
                codec.restore(saved)
            outs.append(step(comm, layout, codec, noise(layout.numel, number), number)[0])
        return outs

    def straight(comm):
        codec = bound(text, layout, comm)
        return [step(comm, layout, codec, noise(layout.numel, number), number)[0] for number in range(6)]

    for once, twice in zip(run_ranks(2, straight)[0], run_ranks(2, work)[0], strict=True):
        assert torch.equal(once, twice)


def test_state_follows_its_tensor_when_the_order_changes():
    before, after = layout_of((30,), (20,)), Layout((Slot("t1", 20, (20,)), Slot("t0", 30, (30,))), 4, 0)

    def work(comm):
        codec = bound("feedback(topk(ratio=0.1))", before, comm)
        step(comm, before, codec, noise(50))
        moved = bound("feedback(topk(ratio=0.1))", after, comm)
        moved.restore(codec.state())
        return residual(codec, before), residual(moved, after)

    first, second = run_ranks(1, work)[0]
    assert torch.equal(first, torch.cat([second[20:], second[:20]]))


def test_state_of_another_model_is_refused():
    def work(comm):
        saved = bound("feedback(topk)", layout_of((30,)), comm).state()
        bound("feedback(topk)", layout_of((31,)), comm).restore(saved)

    with pytest.raises(WrongCommand, match="saved state of t0: it has 30 numbers, the tensor 31"):
        run_ranks(1, work)


@pytest.mark.parametrize("text", [*CODED, *(f"feedback({name})" for name in INNER)])
def test_an_empty_state_starts_afresh(text):
    """As that of a run without a compressor is; also where the codec has worked before."""
    layout = layout_of((20, 16), (50,), tail=2)

    def work(comm):
        used, outs = bound(text, layout, comm), []
        for number in range(3):
            step(comm, layout, used, noise(layout.numel, number), number)
        used.restore({})
        for codec in (used, bound(text, layout, comm)):
            outs.append([step(comm, layout, codec, noise(layout.numel, 9 + k), k)[0] for k in range(2)])
        return outs

    for worked, fresh in run_ranks(2, work):
        assert all(torch.equal(one, other) for one, other in zip(worked, fresh, strict=True))


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("dgc", "feedback(topk)"),
        ("feedback(topk)", "dgc"),
        ("feedback(topk)", "feedback(gtopk)"),
        ("qsgd", "randomk"),  # ranks would choose different elements
        ("sign(momentum=0.9)", "topk"),
        ("powersgd", "feedback(powersgd)"),
    ],
)
def test_the_state_of_another_compressor_is_refused(saved, loaded):
    layout = layout_of((20, 16), (50,))

    def work(comm):
        codec = bound(saved, layout, comm)
        step(comm, layout, codec, noise(layout.numel))
        bound(loaded, layout, comm).restore(codec.state())

    with pytest.raises(WrongCommand) as caught:
        run_ranks(1, work)
    assert f"the saved state of compressor {saved.partition('(momentum')[0]}: this run has {loaded}" in str(
        caught.value
    )


def test_the_state_of_another_rank_of_powersgd_is_refused():
    layout = layout_of((20, 16))

    def work(comm):
        codec = bound("powersgd(rank=1)", layout, comm)
        step(comm, layout, codec, noise(layout.numel))
        bound("powersgd(rank=2)", layout, comm).restore(codec.state())

    with pytest.raises(WrongCommand, match=r"of t0: it is of powersgd\(rank=1\), and this run has rank 2"):
        run_ranks(1, work)


# one by one -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_the_vote_is_the_majority_and_does_not_depend_on_scale(size):
    layout = layout_of((77,))

    def work(comm):
        source = noise(77, comm.rank)
        source[:3] = torch.tensor([0.0, -0.0, float(comm.rank % 2) - 0.5])
        scaled = source * 10.0 ** (comm.rank - 2)
        codec = bound("sign", layout, comm)
        return source, step(comm, layout, codec, source)[0], step(comm, layout, codec, scaled)[0]

    found = run_ranks(size, work)
    signs = sum(torch.where(source < 0, -1, 1) for source, _, _ in found)
    for _, plain, scaled in found:
        assert torch.equal(plain, torch.where(signs < 0, -1.0, 1.0))
        assert torch.equal(scaled, plain)


@pytest.mark.parametrize("numel", [1, 31, 32, 33, 1000])
def test_sign_sends_a_bit_per_element_in_whole_words(numel):
    assert through("sign", noise(numel))[0][1] == [4 * math.ceil(numel / 32)]


def test_signum_takes_the_sign_of_a_momentum():
    layout, steps = layout_of((500,)), [noise(500, k) for k in range(5)]

    def work(comm):
        codec = bound("sign(momentum=0.9)", layout, comm)
        return [step(comm, layout, codec, vector)[0] for vector in steps]

    mean = torch.zeros(500)
    for vector, out in zip(steps, run_ranks(1, work)[0], strict=True):
        mean = 0.9 * mean + 0.1 * vector
        sure = mean.abs() > 1e-6
        assert torch.equal(out[sure], torch.where(mean < 0, -1.0, 1.0)[sure])


@pytest.mark.parametrize("numel", [10, 1000, 200_000])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3, 1])
def test_topk_is_exact(numel, ratio):
    vector = noise(numel)
    out = through(f"topk(ratio={ratio})", vector)[0][0]
    count = max(1, math.floor(ratio * numel + 1e-9))
    expected = torch.zeros(numel)
    where = vector.abs().topk(count).indices
    expected[where] = vector[where]
    assert torch.equal(out, expected)


def test_topk_is_exact_where_the_sample_misleads():
    vector = torch.full((100_000,), 1e-3)
    vector[::251] = 0.0  # the sample sees nothing
    vector[1:2001] = torch.arange(1.0, 2001.0)
    out = through("topk(ratio=0.01)", vector)[0][0]
    assert torch.equal(out.nonzero().view(-1), torch.arange(1001, 2001))


def test_of_equal_elements_those_that_stand_first_are_taken_on_all_ranks():
    for text in ("topk(ratio=0.1)", "gtopk(ratio=0.1)"):
        for out, _ in through(text, torch.ones(100), size=3):
            assert torch.allclose(out, torch.cat([torch.ones(10), torch.zeros(90)]))
    (large, _), *_ = through("topk(ratio=0.01)", torch.ones(100_000))
    assert torch.equal(large.nonzero().view(-1), torch.arange(1000))


@pytest.mark.parametrize("text", ["topk(ratio=1e-7)", "threshold(above=0.5)"])
def test_indices_above_two_to_the_24_survive(text):
    vector = torch.zeros(2**24 + 12)
    vector[2**24 + 1] = 3.0  # no float32 number holds this index
    out, _ = through(text, vector)[0]
    assert out.nonzero().view(-1).tolist() == [2**24 + 1]
    assert out[2**24 + 1] == 3.0


def test_indices_on_the_wire_are_integers():
    where = np.array([0, 2**24 + 1, 2**31 - 1])
    places, values = unpack(pack(where, np.array([1.0, 2.0, 3.0], dtype=np.float32), 2**31))
    assert places.tolist() == where.tolist()
    assert values.tolist() == [1.0, 2.0, 3.0]


def test_a_chunk_with_more_elements_than_an_index_can_tell_is_refused():
    with pytest.raises(WorkloadError, match=r"a chunk of 2,147,483,649 elements: .* an index of 4 bytes") as caught:
        pack(np.array([2**31]), np.ones(1, dtype=np.float32), 2**31 + 1)
    assert "--schedule 'fusion(mb=25)'" in str(caught.value)


def test_of_mostly_zeros_the_others_and_the_first_zeros_are_taken():
    vector = torch.zeros(100_000)
    vector[[500, 77_777]] = torch.tensor([-1.0, 2.0])
    assert largest(vector.numpy(), 4).tolist() == [0, 1, 500, 77_777]
    assert largest(vector.numpy(), 1).tolist() == [77_777]


def test_efsign_scales_by_the_mean_magnitude_of_each_tensor():
    vector = torch.cat([noise(40), 100 * noise(60, 1)])
    out = through("efsign", vector, layout=layout_of((40,), (60,)))[0][0]
    for part in (slice(0, 40), slice(40, 100)):
        assert torch.allclose(out[part], vector[part].abs().mean() * torch.where(vector[part] < 0, -1.0, 1.0))


def test_onebit_sends_the_mean_of_each_sign():
    vector = noise(100)
    out = through("onebit", vector)[0][0]
    for chosen in (vector < 0, vector >= 0):
        assert torch.allclose(out[chosen], vector[chosen].mean())


def test_threshold_counts_in_gradients_whatever_the_number_of_ranks():
    vector = torch.tensor([0.09, 0.11, -0.2, 0.0])
    for size in (1, 2, 3):
        for out, _ in through("threshold(above=0.1)", vector, size):
            assert torch.allclose(out, torch.tensor([0.0, 0.11, -0.2, 0.0]))


def test_randomk_takes_the_same_elements_on_all_ranks_and_others_next_time():
    layout = layout_of((100,))

    def work(comm):
        codec = bound("randomk(ratio=0.2)", layout, comm)
        return [step(comm, layout, codec, torch.ones(100) / comm.size)[0] for _ in range(2)]

    (first, second), *others = run_ranks(3, work)
    assert all(torch.equal(first, other[0]) for other in others)
    assert torch.allclose(first[first != 0], torch.tensor(5.0))
    assert int((first != 0).sum()) == 20
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "text", ["randomk(ratio=0.25)", "qsgd(bucket=8)", "qsgd(levels=1, bucket=8)", "terngrad(bucket=8)", "natural"]
)
def test_unbiased_ones_are_unbiased_over_20000_draws(text):
    """One bucket, drawn 20,000 times: every number keeps its mean."""
    vector, draws = torch.tensor([0.0, 1.0, -1.0, 0.3, -0.01, 0.005, 7.0, -2.5]), 20_000
    out = through(text, vector.repeat(draws))[0][0].double().view(draws, 8)
    error = (out.mean(dim=0) - vector).abs()
    # five standard errors on each of eight means: one false alarm in 200,000
    assert torch.all(error <= 5 * out.std(dim=0) / draws**0.5 + 1e-6)
    assert text == "natural" or torch.all(out.std(dim=0)[1:6] > 0)


def test_ranks_round_at_random_independently():
    layout = layout_of((512,))

    def work(comm):
        codec, dst, heard = bound("qsgd(levels=1)", layout, comm), torch.zeros(512), []
        for payload in codec.rounds(Chunk(0, 0, 512), noise(512), dst):
            heard.append(payload.tensor.clone())
            comm.all_gather(payload.tensor, payload.out).wait()
        return heard[0]

    first, second = run_ranks(2, work)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("levels", [1, 2, 3, 5, 7, 15, 31, 100, 127])
def test_qsgd_packs_any_number_of_levels(levels):
    vector = noise(1001)
    out = through(f"qsgd(levels={levels}, bucket=64)", vector)[0][0]
    norms = torch.nn.functional.pad(vector, (0, 23)).view(-1, 64).norm(dim=1).repeat_interleave(64)[:1001]
    assert torch.all((out - vector).abs() <= norms / levels * 1.0001)


def test_natural_rounds_to_a_power_of_two_beside_the_number():
    vector = noise(1000)
    out = through("natural", vector)[0][0]
    exponents = torch.log2(out.abs())
    assert torch.equal(exponents, exponents.round())
    assert torch.all((out / vector >= 0.5) & (out / vector <= 2.0))


def test_powersgd_is_exact_on_low_rank_matrices_after_a_few_steps():
    matrix = (torch.outer(noise(30), noise(40, 1)) + torch.outer(noise(30, 2), noise(40, 3))).reshape(-1)
    layout = layout_of((30, 40), (7,))
    vector = torch.cat([matrix, noise(7, 4)])

    def work(comm):
        codec = bound("powersgd(rank=2)", layout, comm)
        return [step(comm, layout, codec, vector / comm.size, k)[0] for k in range(3)][-1]

    for out in run_ranks(2, work):
        assert torch.allclose(out, vector, atol=1e-4)


def test_powersgd_recovers_from_a_gradient_of_zero():
    layout = layout_of((30, 40))

    def work(comm):
        codec = bound("powersgd(rank=2)", layout, comm)
        step(comm, layout, codec, torch.zeros(1200))
        return step(comm, layout, codec, noise(1200))[0]

    assert float(run_ranks(1, work)[0].norm()) > 1


@pytest.mark.parametrize("text", ["powersgd(rank=2)", "feedback(powersgd(rank=2))"])
def test_powersgd_recovers_from_zero_where_the_first_rows_stay_zero(text):
    """Zero has no directions: QR gives the first unit vectors, which see nothing of this gradient."""
    layout, gradient = layout_of((50, 16)), noise(800).view(50, 16)
    gradient[:2] = 0

    def work(comm):
        codec = bound(text, layout, comm)
        step(comm, layout, codec, torch.zeros(800))
        return [step(comm, layout, codec, gradient.reshape(-1) / comm.size, k)[0] for k in range(3)]

    first, second = run_ranks(2, work)
    assert all(float(out.norm()) > 1 for out in first)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e19, 1e35])
def test_powersgd_gives_the_same_directions_at_any_scale(scale):
    layout, gradients = layout_of((30, 40)), [noise(1200, k) for k in range(5)]

    def work(comm):
        plain, scaled = bound("powersgd(rank=2)", layout, comm), bound("powersgd(rank=2)", layout, comm)
        for gradient in gradients:
            expected = step(comm, layout, plain, gradient)[0]
            yield expected, step(comm, layout, scaled, gradient * scale)[0] / scale

    for expected, found in run_ranks(1, lambda comm: list(work(comm)))[0]:
        assert torch.allclose(found, expected, atol=1e-4)  # roundings of products over 40 numbers, five steps long


def test_powersgd_starts_where_a_step_ended_whatever_its_length():
    """The paper starts with Q as it is; at length 1 it spans the same, and what comes out differs by roundings."""
    layout, gradients = layout_of((30, 40)), [noise(1200, k) for k in range(5)]

    def work(comm):
        codec = bound("powersgd(rank=2)", layout, comm)
        return [step(comm, layout, codec, gradient)[0] for gradient in gradients]

    start = None
    for gradient, out in zip(gradients, run_ranks(1, work)[0], strict=True):
        matrix = gradient.view(30, 40)
        if start is not None:
            basis = torch.linalg.qr(matrix @ start).Q
            assert torch.allclose(out.view(30, 40), basis @ (basis.t() @ matrix), atol=1e-4)
        left, _, _ = torch.linalg.svd(out.view(30, 40))
        start = matrix.t() @ left[:, :2]


def test_powersgd_treats_a_tensor_that_is_cut_as_a_vector():
    layout, member = layout_of((40, 40)), compressors.MENU.make("powersgd")
    assert member.nbytes(layout, Chunk(0, 0, 1600)) == 4 * 2 * 80
    assert member.nbytes(layout, Chunk(0, 0, 800)) == 4 * 800


def test_dgc_corrects_momentum_and_masks_what_was_sent():
    layout, steps = layout_of((50,)), [noise(50, k) for k in range(6)]

    def work(comm):
        codec = bound("dgc(ratio=0.1, momentum=0.8, warmup=0)", layout, comm)
        return [step(comm, layout, codec, vector)[0] for vector in steps]

    velocity, owed = torch.zeros(50), torch.zeros(50)
    for vector, out in zip(steps, run_ranks(1, work)[0], strict=True):
        velocity = 0.8 * velocity + vector
        owed = owed + velocity
        where = owed.abs().topk(5).indices
        expected = torch.zeros(50)
        expected[where] = owed[where]
        velocity[where] = owed[where] = 0
        assert torch.allclose(out, expected, atol=1e-6)


def test_the_density_of_dgc_falls_in_stages():
    member = compressors.MENU.make("dgc(ratio=0.001, warmup=2, stage=10)")
    found = [member.density(step) for step in (0, 9, 10, 20, 500)]
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.001])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_warm_up_of_dgc_goes_on_when_chunks_are_cut_anew(order):
    layout = layout_of((100,), (100,), (100,))
    plans = [[(0, 300)], [(0, 100), (100, 200), (200, 300)], [(0, 100), (100, 300)], [(0, 300)]]

    def work(comm):
        codec, sent = bound("dgc(ratio=0.0001, warmup=3, stage=1)", layout, comm), []
        for plan in plans:
            for start, stop in (plan[k] for k in order if k < len(plan)):
                dst, rounds = torch.zeros(stop - start), Counted(codec)
                for payload in rounds.rounds(Chunk(0, start, stop), noise(stop - start), dst):
                    comm.all_gather(payload.tensor, payload.out).wait()
                sent.append((stop - start, sum(rounds.sent) // 8))
        return sent, codec.state()["steps"]

    sent, steps = run_ranks(1, work)[0]
    assert sent[0] == (300, 30)
    assert sent[1:4] == [(100, 1)] * 3
    assert steps == len(plans)


def test_the_warm_up_of_dgc_is_counted_in_steps_however_many_chunks_there_are():
    layout = layout_of((100,), (100,))

    def work(comm):
        codec = bound("dgc(ratio=0.01, warmup=1, stage=3)", layout, comm)
        sent = Counted(codec)
        for _ in range(4):
            for start in (0, 100):
                for payload in sent.rounds(Chunk(0, start, start + 100), noise(100), torch.zeros(100)):
                    comm.all_gather(payload.tensor, payload.out).wait()
        return [nbytes // 8 for nbytes in sent.sent]

    assert run_ranks(1, work)[0] == [10] * 6 + [1] * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "dgc",
            "dgc sends more in its first 400 steps, up to 25.1 % of the elements instead of 0.1 %: the bytes shown",
        ),
        ("dgc(warmup=0)", ""),
        ("dgc(ratio=1)", ""),
        ("threshold", "threshold sends what reaches the threshold: the bytes shown are the most that it can be"),
        ("feedback(threshold)", "feedback(threshold) sends what reaches the threshold: the bytes shown are the most"),
        ("topk", ""),
        ("cast", ""),
    ],
)
def test_a_note_says_where_a_step_may_send_something_else_than_the_bytes_shown(text, said):
    axes = Axes(rule=None, exchange=None, schedule=None, compressor=compressors.MENU.make(text), membership=None)
    found = [note for note in notes(axes) if "bytes shown" in note]
    assert len(found) == bool(said)
    assert all(note.startswith(said) for note in found)


def test_dgc_clips_a_workers_gradient_to_its_share():
    out = through("dgc(ratio=1, momentum=0, clip=2, warmup=0)", torch.full((4,), 10.0), size=4)[0][0]
    assert float(out.norm()) == pytest.approx(1.0)  # 2 / sqrt(4)


@pytest.mark.parametrize(("text", "error"), [("cast(bf16)", 2**-8), ("cast(fp16)", 2**-11)])
def test_cast_rounds_once_and_no_more(text, error):
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    (out, _), *_ = through(text, vector)
    assert torch.all((out - vector).abs() <= error * vector.abs())


def test_cast_does_not_overflow_where_the_mean_does_not():
    vector = torch.full((10,), 60000.0)  # near the largest fp16; the plain sum of 3 would be infinite
    for out, _ in through("cast(fp16)", vector, size=3):
        assert torch.isfinite(out).all()


def test_cast_keeps_its_memory_where_the_comm_does():
    """Where results are not shared as well; `meta` stands for a GPU."""

    class Elsewhere:
        rank = 0

        def allocate(self, numel, dtype):
            return torch.zeros(numel, dtype=dtype, device="meta")

    layout, vector = layout_of((10,)), torch.zeros(10, device="meta")
    operator = compressors.MENU.make("cast").scaled().operator(layout, Elsewhere(), False, False)
    (payload,) = operator.rounds(Chunk(0, 0, 10), vector, vector, None)
    assert {payload.tensor.device.type, payload.out.device.type} == {"meta"}


def test_cast_leaves_half_precision_alone():
    assert compressors.MENU.make("cast").bind(Layout((Slot("x", 4),), 2, 0), None, torch.float16, True) is None


@pytest.mark.parametrize("text", TEXTS)
def test_a_compressor_prints_as_it_is_read(text):
    member = compressors.MENU.make(text)
    assert compressors.MENU.make(str(member)) == member


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topk(ratio=0)", "above 0 and at most 1; got 0"),
        ("topk(ratio=1.5)", "above 0 and at most 1; got 1.5"),
        ("gtopk(ratio=-1)", "above 0 and at most 1"),
        ("randomk(ratio=2)", "above 0 and at most 1"),
        ("dgc(ratio=0)", "above 0 and at most 1"),
        ("dgc(momentum=1)", "a momentum lies in [0, 1)"),
        ("dgc(clip=-1)", "clip is at least 0"),
        ("dgc(stage=0)", "stage is at least 1"),
        ("dgc(warmup=-1)", "warmup is at least 0"),
        ("sign(momentum=1)", "a momentum lies in [0, 1)"),
        ("threshold(above=0)", "a magnitude is above 0"),
        ("qsgd(levels=0)", "levels is from 1 to 127"),
        ("qsgd(levels=128)", "levels is from 1 to 127"),
        ("qsgd(bucket=0)", "bucket is at least 1"),
        ("terngrad(bucket=0)", "bucket is at least 1"),
        ("powersgd(rank=0)", "rank is at least 1"),
        ("topk(ration=0.1)", "topk takes ratio; got ration"),
    ],
)
def test_wrong_settings_are_refused(text, complaint):
    with pytest.raises(WrongCommand) as caught:
        compressors.MENU.make(text)
    assert complaint in str(caught.value)
    if "ration" not in text:
        assert compressors.MENU.make(caught.value.remedy), "a remedy can be taken as it is"


def test_a_rank_that_no_matrix_of_a_model_has_is_refused():
    member = compressors.MENU.make("powersgd(rank=21)")
    with pytest.raises(WrongCommand, match="no matrix of the model has more than 20 rows and columns"):
        member.check(layout_of((20, 30), (5,), (0, 50), (50, 0)).slots)
    member.check(layout_of((20, 30), (30, 30)).slots)
    member.check(layout_of((5,)).slots)


@pytest.mark.parametrize("shape", [(2048, 1), (20, 30)])
def test_a_part_of_a_model_without_such_a_matrix_travels_as_it_is(shape):
    layout, vector = layout_of(shape, (0, 5), (7,)), noise(math.prod(shape) + 7)
    for text in ("powersgd(rank=21)", "feedback(powersgd(rank=21))"):
        (out, sent), *_ = through(text, vector, size=2, layout=layout)
        assert torch.allclose(out, vector)
        assert sent == [vector.nbytes]
