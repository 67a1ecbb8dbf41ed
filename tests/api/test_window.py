"""One-sided windows as library calls, on ranks that are threads."""

import random
import threading
import time

import pytest
import torch

from paceline.api import collectives as calls
from paceline.api import window as windows
from paceline.api.join import current
from paceline.errors import PeerLost, UnknownName, WrongCommand
from tests.api.test_collectives import on_ranks


def value(rank):
    return torch.tensor([float(rank), 10.0 * rank], dtype=torch.float64)


def meet():
    current().comm.barrier()


def test_put_is_seen_by_the_target_alone_and_mixed_when_it_wants():
    def work(rank):
        win = windows.window(value(rank), topology="one_way_ring")
        win.put()
        meet()
        assert win.x.tolist() == value(rank).tolist(), "nothing moves before update"
        seen = win.versions()
        mixed = win.update().tolist()
        return seen, win.versions(), mixed

    for rank, (seen, after, mixed) in enumerate(on_ranks(3, work)):
        before = (rank - 1) % 3
        assert (seen, after) == ({before: 1}, {before: 0})
        assert mixed == [(rank + before) / 2, 10 * (rank + before) / 2]


def test_one_round_of_put_and_update_equals_neighbor_averaging():
    def work(rank):
        win = windows.window(value(rank), topology="exp2")
        win.put()
        meet()
        return win.update()[0].item(), win.p

    found = on_ranks(4, work)
    assert [x for x, _ in found] == pytest.approx([5 / 3, 4 / 3, 1, 2], abs=1e-15)
    assert [p for _, p in found] == [1.0] * 4


def test_update_takes_no_part_of_those_who_never_wrote():
    def work(rank):
        win = windows.window(value(rank), topology="full")
        if rank == 2:
            win.put(dst_weights={0: 1.0})
        meet()
        return win.update()[0].item()

    assert on_ranks(4, work) == [1.0, 1.0, 2.0, 3.0]


def test_what_was_read_counts_again_unless_it_is_reset():
    def work(rank):
        win = windows.window(value(rank), topology="ring")
        if rank == 1:
            win.put()
        meet()
        weights = {"self_weight": 0.5, "src_weights": {1: 0.5}}
        return [win.update(**weights, reset=k == 1)[0].item() for k in range(3)] if rank == 0 else None

    assert on_ranks(2, work)[0] == [0.5, 0.75, 0.75]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (lambda rank: {"self_weight": 0.5}, [0.75, 1.0, 1.25]),  # both others share the rest
        (lambda rank: {"src_weights": {(rank + 1) % 3: 0.25}}, [0.25, 1.25, 1.5]),  # the own value has the rest
    ],
)
def test_weights_that_are_left_out_are_the_rest_to_one(weights, expected):
    def work(rank):
        win = windows.window(value(rank), topology="full")
        win.put()
        meet()
        return win.update(**weights(rank))[0].item()

    assert on_ranks(3, work) == expected


def test_get_reads_without_the_help_of_its_source():
    def work(rank):
        win = windows.window(value(rank), topology="ring")
        if rank == 0:
            win.get({1: 0.5})  # half of its x and half of its p
            found = win.update(self_weight=0.5, src_weights={1: 1.0})[0].item(), win.versions()
        meet()
        return found if rank == 0 else None

    assert on_ranks(2, work)[0] == (0.5, {1: 0})


def test_accumulate_hands_mass_over_and_collect_takes_it():
    def work(rank):
        win = windows.window(value(rank) + 1, topology="one_way_ring")
        win.accumulate()
        win.accumulate(dst_weights={(rank + 1) % 3: 0.25})
        kept = win.p
        meet()
        return kept, win.collect().tolist(), win.p

    for rank, (kept, x, p) in enumerate(on_ranks(3, work)):
        before = (rank - 1) % 3
        assert kept == 0.375
        assert p == 1.0
        assert x == [0.375 * (rank + 1) + 0.625 * (before + 1), 0.375 * (10 * rank + 1) + 0.625 * (10 * before + 1)]


def test_push_sum_finds_the_mean_on_a_star_in_whatever_order_ranks_call():
    def work(rank):
        dice = random.Random(rank)
        win = windows.window(value(rank), topology="star(uniform=true)")
        for _ in range(100):
            win.accumulate()
            time.sleep(dice.random() * 1e-4)
            win.collect()
        for _ in range(60):  # in step, so that the end does not depend on the scheduler
            win.accumulate()
            meet()
            win.collect()
            meet()
        return win.mean.tolist(), win.p, win.x.tolist()

    found = on_ranks(4, work)
    assert sum(p for _, p, _ in found) == pytest.approx(4, abs=1e-12)
    assert sum(x[1] for _, _, x in found) == pytest.approx(60, abs=1e-11)
    assert {round(mean[0], 6) for mean, _, _ in found} == {1.5}


def test_a_call_that_does_not_wait_gives_a_handle():
    def work(rank):
        win = windows.window(value(rank), topology="ring")
        handle = win.put(value(rank) * 2, wait=False)
        meet()
        return handle.wait().tolist(), handle.done(), win.get(wait=False).done()

    assert on_ranks(2, work) == [([0.0, 0.0], True, True), ([2.0, 20.0], True, True)]


def test_targets_of_a_topology_that_changes_follow_the_step():
    def work(rank):
        win = windows.window(value(rank), topology="one_peer(exp2)")
        for step in range(2):
            win.put(step=step)
            meet()
            win.update(reset=True)
            meet()
        return win.x[0].item()

    assert on_ranks(4, work) == [1.5] * 4


def test_one_rank_alone_keeps_its_own():
    def work(rank):
        win = windows.window(value(1), topology="ring")
        win.put()
        win.accumulate()
        return win.update().tolist(), win.collect().tolist(), win.versions()

    assert on_ranks(1, work) == [([1.0, 10.0], [1.0, 10.0], {})]


def test_bytes_of_puts_and_gets_are_counted_at_the_receiver():
    def work(rank):
        comm = current().comm
        win = windows.window(value(rank), topology="one_way_ring")
        before = comm.received()
        meet()
        win.put()
        win.accumulate()
        meet()
        put = [now - then for now, then in zip(comm.received(), before, strict=True)]
        win.get()
        got = sum(comm.received()) - sum(before) - sum(put)
        meet()
        win.free()
        return put, got, sum(comm.received()) - sum(before)

    for rank, (put, got, total) in enumerate(on_ranks(3, work)):
        assert put == [2 * 24 if source == (rank - 1) % 3 else 0 for source in range(3)]  # two numbers and p
        assert (got, total) == (24, 72)


def test_a_mutex_is_held_by_one_rank_at_a_time():
    inside, most = [], []

    def work(rank):
        win = windows.window(value(rank), topology="ring")
        for _ in range(20):
            with win.mutex([0, 2]):
                inside.append(rank)
                most.append(len(inside))
                time.sleep(1e-4)
                inside.remove(rank)
        meet()

    on_ranks(3, work)
    assert max(most) == 1


def test_a_mutex_that_is_not_released_names_its_holder():
    released = threading.Event()

    def work(rank):
        win = windows.window(value(rank), topology="ring")
        if rank == 1:
            with win.mutex(0):
                meet()
                released.wait(20)
            return None
        meet()
        try:
            with (
                pytest.raises(PeerLost, match="rank 1 did not release the mutex of rank 0") as caught,
                win.mutex(0, 0.05),
            ):
                pass
        finally:
            released.set()
        return caught.value.rank

    assert on_ranks(2, work) == [1, None]


def test_a_mutex_taken_twice_is_told():
    def work(rank):
        win = windows.window(value(rank), topology="ring")
        with win.mutex(0), pytest.raises(WrongCommand, match="holds it already"), win.mutex(0):
            pass

    on_ranks(1, work)


# errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        (lambda win: win.put(torch.zeros(3, dtype=torch.float64)), r"shape \(2,\).*got a tensor of shape \(3,\)"),
        (lambda win: win.accumulate(torch.zeros(2)), "got a tensor of shape .* and torch.float32"),
        (lambda win: win.put(dst_weights={2: 1.0}), "puts to rank 1, and weights name rank 2"),
        (lambda win: win.accumulate(dst_weights={0: 0.1}), "adds to rank 1, and weights name rank 0"),
        (lambda win: win.get({1: 1.0}), "gets from rank 3, and weights name rank 1"),
        (lambda win: win.update(src_weights={7: 1.0}), "mixes rank 3, and weights name rank 7"),
        (lambda win: win.mutex(4).__enter__(), "there are ranks 0 to 3"),
    ],
)
def test_a_wrong_use_is_refused_with_a_reason(use, complaint):
    def work(rank):
        win = windows.window(value(rank), topology="one_way_ring")
        if rank == 0:
            with pytest.raises(WrongCommand, match=complaint):
                use(win)

    on_ranks(4, work)


@pytest.mark.parametrize("verb", ["put", "accumulate", "get", "update", "collect", "versions", "free"])
def test_a_freed_window_cannot_be_used(verb):
    def work(rank):
        win = windows.window(value(rank), name="w", topology="ring")
        win.free()
        with pytest.raises(WrongCommand, match="window 'w' was freed"):
            getattr(win, verb)()

    on_ranks(2, work)


def test_names_are_taken_until_they_are_freed():
    def work(rank):
        win = windows.window(value(rank), name="weights", topology="ring")
        assert windows.window(name="weights") is win
        with pytest.raises(WrongCommand, match="window 'weights' exists already"):
            windows.window(value(rank), name="weights", topology="ring")
        win.free()
        windows.window(value(rank), name="weights", topology="ring")

    on_ranks(2, work)


def test_an_unknown_name_is_told_with_the_nearest():
    def work(rank):
        windows.window(value(rank), name="weights")
        with pytest.raises(UnknownName, match="did you mean weights"):
            windows.window(name="wieghts")

    on_ranks(2, work)


def test_ranks_that_ask_for_different_windows_all_raise():
    def work(rank):
        with pytest.raises(WrongCommand, match="ask for different windows"):
            windows.window(torch.zeros(2 + rank), topology="ring")
        if rank == 0:
            current().windows["w"] = None
        with pytest.raises(WrongCommand, match="exists already"):
            windows.window(torch.zeros(2), name="w", topology="ring")

    on_ranks(3, work)


def test_a_topology_of_another_size_is_refused(tmp_path):
    path = tmp_path / "g.txt"
    path.write_text("0 1\n1 2\n2 0\n")
    with pytest.raises(WrongCommand, match="it has 3 ranks"):
        on_ranks(4, lambda rank: windows.window(value(rank), topology=f"graph({path})"))


def test_averaging_with_uneven_columns_is_refused_and_collecting_is_not():
    def work(rank):
        win = windows.window(value(rank), topology="star(uniform=true)")
        with pytest.raises(WrongCommand, match="wrong mean"):
            win.update()
        win.collect()

    on_ranks(3, work)


def test_whole_numbers_cannot_be_weighted():
    with pytest.raises(WrongCommand, match="fractions"):
        on_ranks(1, lambda rank: windows.window(torch.tensor([1])))


def test_a_window_of_some_ranks_is_refused():
    def work(rank):
        part = current().comm.split([[0, 1], [2, 3]])
        with pytest.raises(WrongCommand, match="by all ranks of the job"):
            part.window(4, torch.float32, [[1], [0]])

    on_ranks(4, work)


def test_windows_go_beside_collectives():
    def work(rank):
        win = windows.window(value(rank), topology="ring")
        win.put()
        total = calls.allreduce(value(rank), average=False)[0].item()
        meet()
        return total, win.versions()

    assert on_ranks(3, work)[0] == (3.0, {1: 1, 2: 1})
