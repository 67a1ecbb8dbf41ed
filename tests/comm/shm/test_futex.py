"""Sleeping on several words at once, and a fence that two accesses cannot pass."""

import ctypes
import threading
import time

import pytest

from paceline.comm.shm import futex


@pytest.fixture
def words():
    return (ctypes.c_uint32 * 2)()


def both(words):
    base = ctypes.addressof(words)
    return [(base, words[0]), (base + 4, words[1])]


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("moving", [0, 1])
def test_a_change_of_any_word_ends_the_sleep(words, several, moving, monkeypatch):
    if not several:
        monkeypatch.setattr(futex, "_waits_for_several", False)
    seen, base = both(words), ctypes.addressof(words)

    def change():
        time.sleep(0.05)
        words[moving] += 1
        futex.wake(base + 4 * moving)

    thread = threading.Thread(target=change)
    thread.start()
    began = time.monotonic()
    while list(words) == [0, 0]:
        futex.wait_any(seen, 10.0)
    assert time.monotonic() - began < 5
    thread.join()


def test_a_word_that_has_changed_already_is_not_slept_on(words):
    seen = both(words)
    words[1] = 7
    began = time.monotonic()
    futex.wait_any(seen, 10.0)
    assert time.monotonic() - began < 5


def test_a_sleep_ends_at_its_limit(words):
    for slept_on in (both(words), both(words)[:1]):
        began = time.monotonic()
        futex.wait_any(slept_on, 0.02)
        assert 0.009 < time.monotonic() - began < 5  # without futex_waitv the first one ends earlier


class Door:
    def __init__(self):
        self.passed = []

    def __enter__(self):
        self.passed.append("in")

    def __exit__(self, *_):
        self.passed.append("out")


def test_a_fence_on_weakly_ordered_machines_goes_through_the_lock_twice(monkeypatch):
    """With one acquisition and one release, accesses from both sides could be reordered inside the lock."""
    door = Door()
    monkeypatch.setattr(futex, "_order", door)
    futex.fence()
    assert door.passed == [] if futex.STRONG_MEMORY else ["in", "out"] * 2
    monkeypatch.setattr(futex, "STRONG_MEMORY", False)
    door.passed.clear()
    futex.fence()
    assert door.passed == ["in", "out", "in", "out"]
