import torch

from paceline.comm.thread import run_ranks
from paceline.engine.device import RecordingDevice, move
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace


def steps_on_a_recording_device(count):
    device = RecordingDevice()

    def work(comm):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = Pace(model, optimizer, comm=comm, axes=compose(Run(schedule="wfbp")).axes, device=device)
        for _ in range(count):
            model(torch.ones(3, 4)).sum().backward()
            pace.step()

    run_ranks(1, work)
    return device.calls


def test_communication_waits_for_a_mark_on_the_compute_lane():
    calls = steps_on_a_recording_device(1)
    sends = [k for k, call in enumerate(calls) if call[0] == "wait for mark"]
    assert len(sends) == 4  # one chunk per tensor
    for at in sends:
        assert calls[at - 1] == ("mark", calls[at][1]), "a unit left without a fresh mark"
        assert calls[at + 1] == ("sent", calls[at][1])


def test_the_update_waits_for_the_communication_lane_once_per_step():
    calls = steps_on_a_recording_device(3)
    assert [name for name, _ in calls].count("rejoin") == 3
    assert calls[-1][0] == "rejoin"


def test_the_hot_loop_never_synchronizes():
    names = {name for name, _ in steps_on_a_recording_device(2)}
    assert names == {"mark", "wait for mark", "sent", "rejoin"}


def test_nested_batches_move_as_they_are():
    batch = {"x": [torch.ones(2)], "y": (torch.zeros(1), "text")}
    moved = move(batch, torch.device("cpu"))
    assert moved["y"][1] == "text"
    assert torch.equal(moved["x"][0], torch.ones(2))
