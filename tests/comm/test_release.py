"""Shared memory is released: by a closed pace, by a codec that is bound again, by a board."""

import gc
import threading
from pathlib import Path

import pytest
import torch

from paceline.comm.rendezvous import MemoryStore
from paceline.comm.shm.shm import ShmComm
from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from paceline.train.serve import serve
from tests.train.problems import batches, loss_of, mlp

WRAPS = [
    {},
    {"compress": "cast(bf16)"},
    {"compress": "feedback(topk(ratio=0.1))"},
    {"exchange": "hierarchical(2x1)", "schedule": "wfbp"},
    {"exchange": "ps"},
    {"schedule": "dear"},
    {"rule": "atc", "exchange": "neighbor(ring)"},
]


def wrapped(comm, **axes):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Pace(model, optimizer, comm=comm, axes=compose(Run(workers=comm.size, **axes)).axes)


def train(pace, steps=2):
    for x, y in batches(samples=4, steps=steps):
        loss_of(pace.model, x, y).backward()
        pace.step()


def known(comm):
    """Return the numbers of registered vectors and of shared results."""
    return len(comm._space._registered), len(comm._space._results)


@pytest.mark.parametrize("axes", WRAPS, ids=str)
def test_a_closed_pace_gives_its_memory_back(axes):
    def work(comm):
        before, found = known(comm), []
        for _ in range(5):
            pace = wrapped(comm, **axes)
            train(pace)
            found.append(known(comm))
            pace.close()
            pace.close()  # once more changes nothing
        return before, found, known(comm)

    for before, found, after in run_ranks(2, work):
        assert after == before
        assert len(set(found)) == 1
        assert found[0] != before


def test_a_codec_that_is_bound_anew_gives_back_what_it_had():
    def work(comm):
        pace = wrapped(comm, compress="cast(bf16)")
        train(pace, 3)  # bound anew after the first
        return known(comm)

    assert run_ranks(2, work) == [(2, 2)] * 2, "what is cast, and the tail"


def test_a_step_that_is_given_up_keeps_its_memory_for_those_who_come_to_its_end():
    def work(comm):
        pace = wrapped(comm, schedule="priority")
        for x, y in batches(samples=4, steps=1):
            loss_of(pace.model, x, y).backward()
        pace.close()
        pace.finish()
        return known(comm)

    assert run_ranks(2, work) == [(1, 1)] * 2


def test_a_board_keeps_no_more_than_itself():
    def work(comm):
        board = comm.board(4)
        if comm.rank == 0:
            board.say(7)
        return known(comm), board.heard() if comm.rank == 0 else board.hear()

    assert [found for found, _ in run_ranks(2, work)] == [(0, 0)] * 2


def test_servers_let_go_of_what_their_workers_gave_back():
    served = []

    def work(comm):
        for _ in range(5):
            pace = wrapped(comm, exchange="ps(servers=1)")
            train(pace)
            pace.close()

    run_ranks(2, work, servers=1, serve=lambda attendant: (served.append(attendant), serve(attendant)))
    for vectors in served[0]._vectors.values():
        assert [bool(vector.numel()) for vector in vectors] == [False] * 4 + [True]


def segments():
    return Path("/proc/self/maps").read_text().count("memfd:paceline")


def test_closed_paces_leave_no_mappings_and_gradients_that_somebody_holds_stay():
    store, found, held = MemoryStore(), {}, {}

    def work(rank):
        comm = ShmComm(rank, 2, store, 30)
        comm.get_ready()
        counts = []
        for _ in range(5):
            pace = wrapped(comm)
            train(pace)
            if rank not in held:
                held[rank] = pace.engines[0].arenas[0].result_views[0], pace.engines[0].arenas[0].result.clone()
            pace.close()
            del pace
            gc.collect()
            comm.barrier()
            counts.append(segments())
            comm.barrier()
        found[rank] = counts
        comm.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(set(counts)) for counts in found.values()] == [1, 1], found
    for view, result in held.values():
        assert torch.equal(view.flatten(), result[: view.numel()])
