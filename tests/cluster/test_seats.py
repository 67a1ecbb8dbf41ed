"""Seats: which rank runs where, and what its process is told."""

import os

from paceline.cluster.seats import KEEP_MEMORY, cluster_of, environment_of, hosts_in, seats_here, seats_on
from paceline.types import Host, Place

A, B = Host("a", 2, interface="eth1"), Host("b", 1, address="10.0.0.2", environ={"DATA": "/b"})


def variables(seat, seats, workers, environ=None, sharing=1):
    return environment_of(seat, seats, workers, environ or {}, port=1234, store="s", folder="f", sharing=sharing)


def test_ranks_see_the_variables_of_torchrun():
    seen = variables(seats_here(4)[2], seats_here(4), 4, {"HOME": "/h"}, sharing=4)
    assert seen["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 4))
    del seen["OMP_NUM_THREADS"]
    assert seen == {
        **KEEP_MEMORY,
        "HOME": "/h",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
        "GLOO_SOCKET_IFNAME": "lo",
        "PACELINE_SERVERS": "0",
        "PACELINE_STORE": "s",
        "PACELINE_JOB": "f",
        "PYTHONUNBUFFERED": "1",
    }


def test_the_choices_of_the_caller_are_kept_and_an_outer_torchrun_is_forgotten():
    chosen = {"OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "eth0", "TORCHELASTIC_RUN_ID": "x", "RANK": "9"}
    seen = variables(seats_here(1)[0], seats_here(1), 1, chosen)
    assert (seen["OMP_NUM_THREADS"], seen["GLOO_SOCKET_IFNAME"], seen["RANK"]) == ("7", "eth0", "0")
    assert not [name for name in seen if name.startswith("TORCHELASTIC")]


def test_hosts_may_differ_in_size_and_settings():
    seats = seats_on([A, A, B])
    seen = [variables(seat, seats, 3) for seat in seats]
    assert [(one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"], one["NODE_RANK"]) for one in seen] == [
        ("0", "2", "0"),
        ("1", "2", "0"),
        ("0", "1", "1"),
    ]
    assert {one["MASTER_ADDR"] for one in seen} == {"a"}
    assert [one.get("GLOO_SOCKET_IFNAME") for one in seen] == ["eth1", "eth1", None]
    assert [one.get("DATA") for one in seen] == [None, None, "/b"]


def test_ranks_may_be_dealt_round_robin():
    seats = seats_on([A, B, A])
    assert cluster_of(seats).nodes == (0, 1, 0)
    assert [seat.local_rank for seat in seats] == [0, 0, 1]
    assert hosts_in(seats) == (A, B)


def test_a_server_is_no_local_worker():
    seats = seats_on([A, B, A])
    seen = [variables(seat, seats, 2) for seat in seats]
    assert [one["LOCAL_WORLD_SIZE"] for one in seen] == ["1", "1", "1"]
    assert (seen[2]["RANK"], seen[2]["LOCAL_RANK"], seen[2]["PACELINE_SERVERS"]) == ("2", "1", "1")


def test_the_place_of_a_seat_has_the_last_word():
    seats = seats_on([A], lambda rank: Place((), {"LOCAL_RANK": "5"}))
    assert variables(seats[0], seats, 1)["LOCAL_RANK"] == "5"
