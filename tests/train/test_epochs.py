"""Epochs are those of the source: every sample once in each, and nothing is trained before them."""

import functools
import operator

import pytest

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.train.worker import measure


def trained(run):
    """The ids of every step of all ranks, without stand-ins, as the training loop used them."""

    def work(comm):
        training = training_of(compose(run), comm)
        batches, steps = training.workload.batch, []
        training.feed.close()
        training.feed._samples = lambda ids: (*batches(ids), ids)
        loss = training.workload.loss

        def kept(model, batch):
            steps.append(batch[2].tolist()[: training.feed.count])
            return loss(model, batch[:2])

        object.__setattr__(training.workload, "loss", kept)
        measure(run, training, comm, {})
        training.feed.close()
        return steps, training.losses

    ranks = run_ranks(run.workers, work)
    return [functools.reduce(operator.iadd, parts, []) for parts in zip(*(steps for steps, _ in ranks), strict=True)]


@pytest.mark.parametrize("schedule", ["fusion", "mgwfbp"])  # the second needs steps of its own to plan
def test_every_sample_is_trained_once_per_epoch(schedule, monkeypatch):
    monkeypatch.setenv("PACELINE_WATCHED", "0")
    monkeypatch.setenv("PACELINE_FLOPS", "1")
    run = Run(
        model="mlp(hidden=8, image_size=4)", source="fake(cpu, samples=35)", global_batch=8, epochs=2, schedule=schedule
    )
    alone = trained(run)
    assert len(alone) == 2 * 5
    for epoch in (alone[:5], alone[5:]):
        assert sorted(functools.reduce(operator.iadd, epoch, [])) == list(range(35))
    for workers in (2, 4):
        assert trained(run.with_(workers=workers)) == alone
