"""Epochs are those of the source: every sample once in each, even after earlier steps."""

import pytest

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.train.worker import measure


@pytest.mark.parametrize("schedule", ["fusion", "mgwfbp"])  # the second needs steps of its own to plan
def test_epochs_begin_with_the_first_batch_after_warm_up(schedule, monkeypatch):
    monkeypatch.setenv("PACELINE_WATCHED", "0")
    run = Run(model="mlp", source="fake(cpu, samples=32)", batch_size=8, epochs=2, warmup=3, schedule=schedule)
    dealt = []

    def work(comm):
        training = training_of(compose(run), comm)
        fresh = training.deal

        def counted():
            taken = []
            dealt.append(taken)
            for number, batch in enumerate(fresh()):
                taken.append(number)
                yield batch

        training.deal, training.batches = counted, counted()
        measure(run, training, comm, {})

    run_ranks(1, work)
    before, epochs = dealt
    assert len(before) >= 3
    assert epochs[:8] == list(range(2 * 4))  # what is looked at after the measurement comes later
