import pytest

from paceline.measure.communication import communication, in_flight, packing, ratio, task
from paceline.measure.gpu import GpuUse, understood

PARTS = {"data": 0.0, "forward": 0.02, "backward": 0.05, "exposed": 0.02, "update": 0.01, "other": 0.0, "step": 0.1}
# Two chunks that overlap in time, then a third alone: 4 + 2 seconds in flight, in one step.
EVENTS = [
    (0.0, "begin", 0, -1, 0),
    (0.7, "ready", 0, 0, 0.2),
    (1.0, "leave", 0, 0, 0),
    (2.0, "leave", 0, 1, 0),
    (3.0, "back", 0, 0, 0),
    (5.0, "back", 0, 1, 0),
    (6.0, "leave", 0, 2, 0),
    (8.0, "back", 0, 2, 0),
]


def test_time_in_flight_counts_overlapping_chunks_once():
    assert in_flight(EVENTS) == 6.0
    assert in_flight([]) is None


def test_packing_is_what_copying_into_the_arena_took():
    assert packing(EVENTS) == pytest.approx(0.2)
    assert packing([]) is None


def test_overlapped_is_what_was_in_flight_and_not_exposed():
    found = communication(PARTS, [EVENTS, EVENTS], [2.0, 1.0], separable=True)
    assert found["overlapped"] == pytest.approx(4.5)
    assert found["in_flight"] == pytest.approx(4.52)
    assert found["share"] == pytest.approx(0.2)
    assert found["ratio"] == "10:2"


def test_nothing_is_claimed_where_communication_cannot_be_separable():
    found = communication(PARTS, [EVENTS], [0.0], separable=False)
    assert set(found.values()) == {None}
    assert task(PARTS, found, [EVENTS])["allreduce"] is None


@pytest.mark.parametrize(("exposed", "written"), [(0.0, "10:0.0"), (0.004, "10:0.5"), (0.024, "10:3"), (0.08, "10:10")])
def test_compute_to_communication_is_written_as_published(exposed, written):
    assert ratio({**PARTS, "exposed": exposed}) == written


def test_no_ratio_where_compute_was_not_timed():
    assert ratio({**PARTS, "forward": 0.0, "backward": 0.0}) is None


def test_a_task_has_the_published_columns():
    talk = communication(PARTS, [EVENTS], [6.0], separable=True)
    found = task(PARTS, talk, [EVENTS], batches=50)
    assert found == {
        "batches": 50,
        "task": pytest.approx(5.0),
        "allreduce": pytest.approx(1.0),
        "in_flight": pytest.approx(1.0),
        "pack": pytest.approx(10.0),
        "update": pytest.approx(0.5),
    }


def test_what_nvidia_smi_says_is_understood():
    assert understood("37, 1024\n") == (0.37, 1 << 30)
    assert understood("") is understood("N/A, N/A") is None


def test_gpu_use_is_sampled_while_inside_and_absent_without_one():
    answers = iter(["10, 100", "nonsense", "30, 300", *["30, 200"] * 1000])
    with GpuUse(0, every=0.001, ask=lambda index: next(answers)) as use:
        while use.memory != 300 << 20:
            pass
    assert 0.1 <= use.share <= 0.3
    with GpuUse(None) as nothing:
        pass
    assert nothing.share is nothing.memory is None
