import pytest

from paceline.cluster.machine import Machine
from paceline.errors import Refused
from paceline.run.axes import Axes
from paceline.run.compose.compose import OWN, axes_of, compose
from paceline.run.compose.compression import (
    carried_payloads,
    contractive_feedback,
    has_momentum,
    packs_on_cpus,
    whole_tensors,
)
from paceline.run.compose.matching import common_order, consensus_lanes, elastic_steps_end, lossless_parameters
from paceline.run.run import Run, flag_of
from paceline.strategy import schedules
from paceline.types import Lane, Slot


class Trait:
    """A member with any traits, to test rules before their members arrive."""

    def __init__(self, text, **traits):
        self.text = text
        self.__dict__.update(traits)

    def __str__(self):
        return self.text


def axes(**changes):
    return Axes(**{**vars(axes_of(Run(workers=2))), **changes})


def test_the_default_is_the_mean_gradient_in_fused_chunks():
    found = compose(Run(workers=2)).axes
    assert [str(found.rule), str(found.exchange), str(found.schedule)] == ["grad", "allreduce", "fusion"]


def test_an_axis_wins_over_the_strategy():
    found = compose(Run(workers=2, strategy="bsp", schedule="wfbp")).axes
    assert found.schedule == schedules.MENU.make("wfbp")


def test_a_reference_has_no_axes():
    assert compose(Run(workers=2, strategy="ddp")).axes is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"workers": 0}, "-np 0: at least 1 worker is needed"),
        ({"batch_size": 0}, "--batch-size 0: at least 1 sample is needed"),
        ({"batch_size": 4, "global_batch": 8}, "--batch-size 4 beside --global-batch 8"),
        ({"workers": 3, "global_batch": 8}, "cannot share it evenly. try: --global-batch 6"),
        ({"steps": 4, "epochs": 8}, "--steps 4 beside --epochs 8"),
        (
            {"source": "queue(fake(cpu))", "epochs": 2},
            "--epochs 2 with source queue(source=fake(location=cpu)",
        ),
        ({"source": "zmq(tcp://127.0.0.1:1)", "checkpoint": "x", "epochs": 1}, "--checkpoint x with source zmq"),
        ({"comm": "nccl"}, "--comm nccl: this machine has no GPU"),
        ({"comm": "thread"}, "for tests"),
        ({"comm": "shn"}, "did you mean shm?"),
        ({"topology": "ring"}, "--topology ring with exchange allreduce"),
        ({"strategy": "alreduce"}, "did you mean allreduce?"),
        ({"schedule": "fussion"}, "did you mean fusion?"),
        ({"compress": "casst"}, "did you mean cast?"),
        ({"strategy": "ddp", "schedule": "bsp"}, "--schedule bsp beside --strategy ddp"),
        ({"warmup": -1}, "cannot be negative"),
        ({"clip_norm": 0.0}, "a norm is above 0"),
        ({"deadline": 0.0}, "above 0 seconds"),
        ({"source": "fakee"}, "did you mean fake?"),
        ({"workers": 2, "lab": "lab(hosts=2)", "comm": "shm"}, "--comm shm with --lab: hosts of a lab share no memory"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(changes, complaint):
    with pytest.raises(Refused) as caught:
        compose(Run(**changes))
    assert complaint in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("workers", "-np"),
        ("batch_size", "--batch-size"),
        ("global_batch", "--global-batch"),
        ("steps", "--steps"),
        ("epochs", "--epochs"),
        ("repeats", "--repeats"),
        ("accumulate", "--accumulate"),
        ("classes", "--classes"),
        ("image_size", "--image-size"),
        ("sequence_length", "--sequence-length"),
        ("threads", "--threads"),
    ],
)
def test_less_than_one_is_refused_where_things_are_counted(name, flag):
    with pytest.raises(Refused) as caught:
        compose(Run(**{name: 0}))
    assert any(problem.startswith(f"{flag} 0: at least 1 ") for problem in caught.value.problems)


def test_all_problems_are_reported_at_once():
    with pytest.raises(Refused) as caught:
        compose(Run(workers=0, batch_size=0, steps=1, epochs=1))
    assert len(caught.value.problems) == 3


def test_nccl_is_let_through_where_there_is_a_gpu():
    assert compose(Run(workers=2, comm="nccl"), Machine(gpus=2)).axes is not None


def test_r1_a_lane_that_needs_consensus_is_refused_without_it():
    found = list(consensus_lanes(axes(exchange=Trait("neighbor(ring)", consensus=False))))
    assert "rule grad over exchange neighbor(ring)" in str(found[0])
    assert not list(consensus_lanes(axes()))


def test_r3_a_lossy_compressor_on_parameters_is_refused():
    rule = Trait("atc", lanes=(Lane("parameters", needs_consensus=False, lossy_ok=False),))
    lossy, rounding = Trait("topk", loss="lossy"), Trait("cast", loss="rounding")
    assert "topk with rule atc" in str(next(lossless_parameters(axes(rule=rule, compressor=lossy))))
    assert not list(lossless_parameters(axes(rule=rule, compressor=rounding)))
    assert not list(lossless_parameters(axes(compressor=lossy)))


def test_r4_elastic_refuses_schedules_that_cross_the_step():
    elastic, crossing = Trait("elastic", elastic=True), Trait("priority", crosses_step=True)
    assert "taken back" in str(next(elastic_steps_end(axes(membership=elastic, schedule=crossing))))
    assert not list(elastic_steps_end(axes(membership=elastic)))
    assert not list(elastic_steps_end(axes(schedule=crossing)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"clip_norm": 1.0}, "--clip-norm 1 with schedule priority: tensors are updated one by one"),
        ({"precision": "fp16"}, "could not be skipped as a whole"),
        ({"optimizer": "lbfgs(lr=0.1)"}, "it moves all parameters together"),
        ({"compile": True}, "where a compiled graph cannot stop"),
        ({"rule": "atc"}, "rule atc with schedule priority"),
        ({"exchange": "hierarchical(2x2)"}, "which all ranks must start in one order"),
        ({"schedule": "priority(partition=0)"}, "a piece needs more than 0 bytes"),
        ({"schedule": "priority(partition=8, credit=4)"}, "with a credit below the partition. try: credit=32"),
        ({"schedule": "mgwfbp(best)"}, "exact or greedy"),
        ({"schedule": "dear", "clip_norm": 1.0}, "--clip-norm 1 with schedule dear"),
        ({"schedule": "dear", "exchange": "hierarchical(2x2)"}, "not a reduce-scatter and an all-gather"),
        ({"schedule": "dear", "compress": "cast"}, "has only a part, which cannot be decoded"),
        ({"schedule": "dear(mb=0)"}, "a chunk needs more than 0 MB"),
    ],
)
def test_r5_what_needs_all_gradients_at_once_is_refused_where_the_step_is_crossed(changes, complaint):
    with pytest.raises(Refused) as caught:
        compose(Run(workers=4, **{"schedule": "priority", **changes}))
    assert complaint in str(caught.value)
    assert compose(Run(workers=4, schedule="priority")).axes is not None


def test_r4_priority_with_elastic_is_refused_by_its_traits():
    elastic = Trait("elastic", elastic=True)
    found = list(elastic_steps_end(axes(membership=elastic, schedule=schedules.MENU.make("priority"))))
    assert "schedule priority with membership elastic" in str(found[0])


def test_a_compressor_that_needs_whole_tensors_is_refused_where_they_are_cut():
    with pytest.raises(Refused) as refused:
        compose(Run(workers=2, compress="feedback(powersgd(rank=2))", schedule="priority"))
    reasons = [problem for problem in map(str, refused.value.problems) if "whole tensors" in problem]
    assert len(reasons) == 1, "one reason, told once"


def test_a_compressor_of_several_rounds_is_refused_where_chunks_leave_in_an_order_of_their_own():
    rounds = Trait("gtopk", aligned=False, wires=lambda layout, chunk, size: (1, 2))
    priority = schedules.MENU.make("priority")
    assert "several rounds per chunk" in str(next(common_order(axes(schedule=priority, compressor=rounds))))
    assert not list(common_order(axes(compressor=rounds)))


@pytest.mark.parametrize("compress", ["gtopk", "feedback(gtopk)", "threshold"])
@pytest.mark.parametrize("schedule", ["priority", "auto(crossing=true)"])
@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_a_compressor_of_several_rounds_is_refused_where_rank_0_leads(compress, schedule, workers):
    with pytest.raises(Refused, match="it needs several rounds per chunk"):
        compose(Run(workers=workers, compress=compress, schedule=schedule))
    assert compose(Run(workers=workers, compress=compress, schedule="mgwfbp")).axes is not None
    assert compose(Run(workers=workers, compress="topk", schedule=schedule)).axes is not None


@pytest.mark.parametrize("changes", [{"strategy": "dgc"}, {"compress": "feedback(powersgd(rank=5000))"}])
def test_what_only_a_script_knows_is_not_judged(changes):
    with pytest.raises(Refused):
        compose(Run(workers=2, **changes))
    assert compose(Run(workers=2, **changes), unknown=OWN).axes is not None
    with pytest.raises(Refused, match="this exchange only sums"):
        compose(Run(workers=2, exchange="hierarchical", **{**changes, "compress": "sign"}), unknown=OWN)


def test_cast_lets_infinity_through_beside_a_loss_scale_only():
    plain, scaled = (compose(Run(workers=2, compress="cast(fp16)", precision=p)).axes for p in ("fp32", "fp16"))
    assert (plain.compressor.looks, scaled.compressor.looks) == (True, False)
    assert str(plain.compressor) == str(scaled.compressor) == "cast(to=fp16)"


def test_tensors_without_elements_have_no_rank():
    compressor = compose(Run(workers=2, compress="powersgd")).axes.compressor
    compressor.check([Slot("empty", 0, (0, 5)), Slot("flat", 0, (5, 0)), Slot("w", 100, (10, 10))])


def test_a_note_says_whose_order_priority_follows():
    assert "schedule priority follows the order of rank 0" in compose(Run(workers=2, schedule="priority")).notes


def test_a_note_says_where_sums_are_rounded_on_the_way():
    def noted(**run):
        return any("rounded again at every hop" in note for note in compose(Run(workers=4, **run)).notes)

    assert noted(compress="cast", comm="gloo")
    assert not noted(compress="cast", comm="shm")  # adds in float32
    assert not noted(comm="gloo")
    assert not noted(compress="cast", comm="gloo", exchange="ps")


def test_a_rounding_compressor_leaves_a_note():
    assert "rounds what travels" in compose(Run(workers=2, compress="cast")).notes[0]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rule": "grad", "exchange": "neighbor"}, "this exchange leaves them different"),
        ({"rule": "diloco", "exchange": "neighbor"}, "this exchange leaves them different"),
        ({"rule": "exact_diffusion", "exchange": "neighbor(exp2)"}, "diverges on a directed graph"),
        ({"rule": "atc", "exchange": "neighbor(star(uniform=true))"}, "converge to a wrong mean"),
        ({"rule": "grad", "exchange": "window"}, "this exchange leaves them different"),
        ({"rule": "gradient_tracking", "exchange": "window"}, "must be of the same step"),
        ({"rule": "exact_diffusion", "exchange": "window(ring)"}, "must be of the same step"),
        ({"rule": "push_sum", "exchange": "window(star)"}, "try: --schedule bsp"),
        ({"rule": "atc", "exchange": "window(star(uniform=true))"}, "converge to a wrong mean"),
        ({"strategy": "win_put", "compress": "cast"}, "compressor cast with exchange window"),
        ({"strategy": "win_put", "comm": "nccl"}, "no one-sided calls"),
        ({"exchange": "window(ring)", "topology": "exp2", "rule": "atc"}, "--exchange 'window(exp2)'"),
        ({"rule": "push_sum"}, "this exchange has none"),
        ({"rule": "push_sum", "exchange": "hierarchical(neighbor(ring))", "nodes": "2x2"}, "this exchange has none"),
        ({"rule": "atc", "precision": "fp16"}, "could not make the others skip"),
        ({"exchange": "hierarchical(2x3)"}, "it needs 6 ranks; there are 4"),
        ({"exchange": "hierarchical(ring)"}, "dimensions or neighbor"),
        ({"exchange": "hierarchical(0x4)"}, "every dimension is at least 1"),
        ({"nodes": "2x3"}, "that is 6 ranks"),
        ({"nodes": "two"}, "nodes x ranks of each"),
        ({"exchange": "neighbor(ring)", "topology": "exp2", "rule": "atc"}, "both name a topology"),
        ({"strategy": "hierarchical_neighbor_allreduce", "topology": "ring"}, "hierarchical(neighbor(ring))"),
        ({"rule": "atc(every=0)"}, "at least 1"),
        ({"rule": "diloco(lr=0)"}, "above 0"),
        ({"rule": "diloco(momentum=1)"}, "[0, 1)"),
        ({"strategy": "neighbor_allreduce", "topology": "rung"}, "did you mean ring?"),
    ],
)
def test_neighbors_and_levels_are_refused_where_they_are_unsound(changes, complaint):
    with pytest.raises(Refused) as caught:
        compose(Run(workers=4, **changes))
    assert complaint in str(caught.value)


def test_a_topology_of_the_command_line_replaces_that_of_a_strategy():
    found = compose(Run(workers=4, strategy="neighbor_allreduce", topology="ring")).axes
    assert str(found.exchange) == "neighbor(ring)"


def test_what_waits_for_nobody_leaves_a_note():
    assert any("takes what has arrived" in note for note in compose(Run(workers=4, strategy="win_put")).notes)
    assert compose(Run(workers=4, rule="push_sum", exchange="window(star)", schedule="bsp")).axes is not None


def test_local_rules_leave_a_note_about_convergence():
    assert any("changes convergence" in note for note in compose(Run(workers=4, strategy="local_sgd")).notes)


def test_neighbor_allreduce_crosses_nodes_with_one_rank_at_a_time():
    assert str(compose(Run(workers=4, strategy="neighbor_allreduce")).axes.topology) == "one_peer(exp2)"
    assert str(compose(Run(workers=4, nodes="2x2", strategy="neighbor_allreduce")).axes.topology) == "inner_outer"


def test_r8_feedback_refuses_what_is_not_contractive():
    inner = Trait("shrink", loss="lossy", contractive=False, shrinks=True, remembers=False)
    assert not list(contractive_feedback(axes(compressor=Trait("feedback(shrink)", wrapped=inner))))
    inner.shrinks = False
    found = str(next(contractive_feedback(axes(compressor=Trait("feedback(shrink)", wrapped=inner)))))
    assert "grow without bound" in found
    assert "try: --compress 'feedback(efsign)'" in found


def test_what_cannot_be_summed_needs_an_exchange_that_gathers():
    signs, sums = Trait("sign", summable=False), Trait("ps(servers=2)", gathers=False)
    assert "over exchange ps(servers=2)" in str(next(carried_payloads(axes(compressor=signs, exchange=sums))))
    assert not list(carried_payloads(axes(compressor=signs)))
    assert not list(carried_payloads(axes(compressor=Trait("powersgd", summable=True), exchange=sums)))


def test_whole_tensors_are_not_cut():
    low_rank, cutting = Trait("powersgd", aligned=True), Trait("priority", cuts_tensors=True)
    assert "cuts through" in str(next(whole_tensors(axes(compressor=low_rank, schedule=cutting))))
    assert not list(whole_tensors(axes(compressor=low_rank)))
    assert not list(whole_tensors(axes(schedule=cutting)))


def test_lossy_compressors_stay_off_gpus():
    assert "on GPUs" in str(next(packs_on_cpus(axes(compressor=Trait("topk", loss="lossy")), gpus=1)))
    assert not list(packs_on_cpus(axes(compressor=Trait("topk", loss="lossy")), gpus=0))
    assert not list(packs_on_cpus(axes(), gpus=1))


@pytest.mark.parametrize(
    ("text", "momentum"),
    [
        ("sgd(lr=0.1)", False),
        ("sgd(0.1)", False),
        ("sgd(lr=0.1, momentum=0)", False),
        ("sgd(lr=0.1, momentum=0.0)", False),
        ("sgd(lr=0.1, momentum=0.9)", True),
        ("sgd(0.1, 0.9)", True),
        ("rmsprop(lr=0.1)", False),
        ("rmsprop(lr=0.1, momentum=0.5)", True),
        ("AdamW(lr=0.1)", True),
        ("adagrad(lr=0.1)", False),
    ],
)
def test_momentum_of_an_optimizer_is_seen(text, momentum):
    assert has_momentum(text) is momentum


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("topk", ["all-gather", "changes convergence", "biased and has no feedback"]),
        ("feedback(topk)", ["all-gather", "changes convergence"]),
        ("feedback(gtopk)", ["pair by pair", "changes convergence"]),
        ("feedback(powersgd)", ["changes convergence"]),
        ("randomk", ["changes convergence"]),
        ("cast", ["rounds what travels"]),
        ("none", []),
    ],
)
def test_compressors_leave_notes(text, notes):
    found = compose(Run(workers=2, compress=text, model="mlp")).notes
    assert len(found) == len(notes)
    assert all(note in line for note, line in zip(notes, found, strict=True))


@pytest.mark.parametrize("field", [{"restart": "3"}, {"job": "folder"}, {"batches_per_task": 8}])
def test_what_only_elastic_jobs_have_is_refused_with_fixed_members(field):
    ((name, value),) = field.items()
    with pytest.raises(Refused, match=f"{flag_of(name)} {value} with membership fixed"):
        compose(Run(model="mlp", workers=2, **field))
    assert compose(Run(model="mlp", workers=2, membership="elastic", **field)).axes is not None
