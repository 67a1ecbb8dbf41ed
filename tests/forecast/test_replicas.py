"""Virtual replicas: the numerics of many workers, on the clock of a forecast."""

import pytest

from paceline.errors import WrongCommand
from paceline.forecast.calibrate import calibrate
from paceline.forecast.machines import read_machines
from paceline.forecast.replicas import learn, spoken, train
from paceline.forecast.study import study
from paceline.run.run import Run

RUN = Run(model="mlp", batch_size=2, threads=1)


def points(strategies, workers):
    machines = read_machines("machines(nodes=8, ranks=2, bandwidth=1gbit)")
    return study(RUN, strategies, [workers], machines.fabric(), calibrate("mlp", step=0.01, batch=2))


def test_sixteen_replicas_learn_as_one_worker_with_their_global_batch():
    found = points(["allreduce", "local_sgd"], 16)
    many, local = learn(found, RUN, 5)
    alone = train(RUN.with_(workers=1, batch_size=32, strategy="allreduce"), [0], [1, 2, 3, 4, 5])
    assert [look.loss for look in many.looks] == pytest.approx([loss for _, loss, _ in alone], rel=1e-4)
    assert [look.loss for look in local.looks] != pytest.approx([look.loss for look in many.looks], rel=1e-6)
    step = found.of("allreduce")[0].outlook.step
    assert [look.seconds for look in many.looks] == pytest.approx([k * step for k in range(1, 6)])
    assert many.looks[-1].seconds > local.looks[-1].seconds, "who averages rarely waits rarely"


def test_what_depends_on_the_order_of_arrival_is_not_trained():
    [curve] = learn(points(["win_put"], 4), RUN, 2)
    assert "order" in curve.problem
    assert any("not trained" in line for line in spoken(points(["win_put"], 4), RUN, [curve]))


def test_more_replicas_than_this_process_can_hold_are_refused():
    with pytest.raises(WrongCommand, match="at most 64"):
        learn(points(["allreduce"], 128), RUN, 2)
