"""Labs and quotas as values: their syntax, what is refused, and which leftovers belong to whom."""

import os
import subprocess
import sys

import pytest

from paceline.cluster.lab import network, quota
from paceline.cluster.lab.lab import Lab, read_lab
from paceline.cluster.lab.network import Network, shaping
from paceline.cluster.lab.quota import Quota, Tree, find_tree
from paceline.cluster.owner import is_abandoned, owned_name, owned_prefix
from paceline.cluster.seats import environment_of
from paceline.errors import BadMember, UnknownName, WrongCommand
from paceline.types import Place


def test_a_lab_prints_as_it_is_written():
    for lab in Lab(), Lab(8, "200mbit"), Lab(2, "2.5gbit"):
        assert read_lab(str(lab)) == lab


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lab(hosts=0)", "1 to 64 hosts"),
        ("lab(hosts=65)", "1 to 64 hosts"),
        ("lab(bandwidth=fast)", "kbit, mbit or gbit"),
        ("lab(bandwidth=100)", "kbit, mbit or gbit"),
        ("lab(bandwidth=1mbit;reboot)", "kbit, mbit or gbit"),
        ("lab(bandwidth=1kbit)", "at least 100kbit"),
        ("lab(delay=3)", "lab takes hosts, bandwidth, overlay; got delay"),
    ],
)
def test_a_wrong_lab_is_named(text, why):
    with pytest.raises(BadMember, match=why):
        read_lab(text)


def test_another_word_is_not_a_lab():
    with pytest.raises(UnknownName, match="did you mean lab"):
        read_lab("lap(hosts=4)")


def test_bandwidth_is_bits_on_the_command_line_and_bytes_inside():
    assert Lab(bandwidth="200mbit").bytes_per_second == 25e6


@pytest.mark.parametrize(
    ("hosts", "workers", "nodes"),
    [(4, 4, (0, 1, 2, 3)), (2, 4, (0, 0, 1, 1)), (4, 2, (0, 1)), (2, 3, (0, 0, 1)), (1, 2, (0, 0))],
)
def test_neighbors_in_rank_share_a_host(hosts, workers, nodes):
    assert Lab(hosts).cluster(workers).nodes == nodes


def test_seats_tell_ranks_how_to_find_each_other():
    seats = Network(Lab(2)).seats(4)
    seen = [environment_of(seat, seats, 4, {}, port=1, store="s", folder="f", sharing=4) for seat in seats]
    assert [one["LOCAL_RANK"] for one in seen] == ["0", "1", "0", "1"]
    assert {one["LOCAL_WORLD_SIZE"] for one in seen} == {"2"}
    assert [one["NODE_RANK"] for one in seen] == ["0", "0", "1", "1"]
    assert {one["MASTER_ADDR"] for one in seen} == {"10.77.0.1"}
    assert {one["GLOO_SOCKET_IFNAME"] for one in seen} == {"eth0"}


def test_a_seat_of_a_lab_is_inside_the_control_group_of_its_rank():
    seats = Network(Lab(2)).seats(2, place=lambda rank: Place(("enter", str(rank))))
    assert [seat.place.prefix[:4] for seat in seats] == [("enter", str(rank), "ip", "netns") for rank in range(2)]


def test_a_place_is_entered_from_the_outer_one():
    place = Place(("b",), {"X": "inner"}).inside(Place(("a",), {"X": "outer", "Y": "1"}))
    assert place == Place(("a", "b"), {"X": "inner", "Y": "1"})


def test_the_burst_grows_with_the_rate():
    slow, fast = (shaping("eth0", Lab(bandwidth=rate))[1] for rate in ("200mbit", "1gbit"))
    assert "rate 200000000bit ceil 200000000bit burst 16kb" in slow
    assert "burst 32kb" in fast


def test_a_name_belongs_to_its_process_until_that_has_ended():
    mine = owned_name()
    assert not is_abandoned(mine)
    words = mine.split("-")
    assert is_abandoned("-".join([*words[:3], str(int(words[3]) + 1), words[4]])), (
        "the pid was given to another process"
    )
    code = "from paceline.cluster.owner import owned_name; print(owned_name())"
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert is_abandoned(theirs)
    assert is_abandoned(theirs + "-0")


@pytest.mark.parametrize("name", ["eth0", "paceline", "paceline-my-own-name-here", "cni-1234-1-1-1"])
def test_names_of_others_are_never_abandoned(name):
    assert not is_abandoned(name)


def test_the_same_pid_of_another_container_is_not_ours():
    words = owned_name().split("-")
    assert not is_abandoned("-".join(["paceline", "1", *words[2:]]))


def test_without_root_a_lab_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(WrongCommand, match=r"need root"), Network(Lab()):
        pass


def test_without_its_tools_a_lab_says_what_to_install(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(network.shutil, "which", lambda tool: None)
    with pytest.raises(WrongCommand, match=r"needs ip and tc.*apt-get install iproute2"), Network(Lab()):
        pass


def machine(tmp_path, mounts, own, files=()):
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "mounts").write_text(
        "".join(f"x {tmp_path / place} {kind} {options} 0 0\n" for place, kind, options in mounts)
    )
    (proc / "self" / "cgroup").write_text(own)
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc


def test_version_one_groups_lie_below_our_own(tmp_path):
    (tmp_path / "cpu" / "inner").mkdir(parents=True)
    proc = machine(tmp_path, [("cpu", "cgroup", "rw,cpu,cpuacct")], "3:cpu,cpuacct:/inner\n0::/\n")
    assert find_tree(proc) == Tree(1, tmp_path / "cpu" / "inner")


def test_version_two_is_taken_where_it_has_the_controller(tmp_path):
    files = [("two/cgroup.controllers", "cpu memory"), ("two/cgroup.subtree_control", "")]
    files += [("two/a/cgroup.controllers", "memory"), ("two/a/cgroup.subtree_control", "")]
    proc = machine(tmp_path, [("two", "cgroup2", "rw")], "0::/a\n", files)
    assert find_tree(proc) == Tree(2, tmp_path / "two")
    assert "cpu" in (tmp_path / "two" / "cgroup.subtree_control").read_text()


def test_version_one_is_taken_where_version_two_has_no_controller(tmp_path):
    (tmp_path / "cpu").mkdir()
    mounts = [("two", "cgroup2", "rw"), ("cpu", "cgroup", "rw,cpu")]
    proc = machine(tmp_path, mounts, "1:cpu:/elsewhere\n0::/\n", [("two/cgroup.controllers", "")])
    assert find_tree(proc) == Tree(1, tmp_path / "cpu")


@pytest.mark.parametrize(
    ("version", "name", "text"), [(2, "cpu.max", "30000 100000"), (1, "cpu.cfs_quota_us", "30000")]
)
def test_a_quota_is_a_part_of_every_period(tmp_path, version, name, text):
    Tree(version, tmp_path).limit(tmp_path, 0.3)
    assert (tmp_path / name).read_text() == text


def test_a_machine_without_groups_refuses_a_quota(tmp_path):
    proc = machine(tmp_path, [], "")
    with pytest.raises(WrongCommand, match=r"--cpus 0.3: this machine has no control group"), Quota(0.3, 1, proc):
        pass


def test_groups_that_cannot_be_made_refuse_a_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(quota, "find_tree", lambda proc: Tree(1, tmp_path / "nowhere"))
    with pytest.raises(WrongCommand, match=r"--cpus 0.3: .*No such file"), Quota(0.3, 1):
        pass


def test_only_names_of_ours_are_abandoned(tmp_path, monkeypatch):
    """No process has that pid, so its names are abandoned."""
    here = owned_prefix().split("-")[1]
    ours = [f"paceline-{here}-9999999-0-abc123-0", f"paceline-{here}-9999999-0-abc123-switch"]
    others = [
        "paceline-x",
        f"paceline-{here}-9999999-0-abc123-x",
        "paceline-1-9999999-0-abc123-0",
        f"{owned_prefix()}abc123-0",
    ]
    for name in (*ours, *others):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(network, "NAMESPACES", tmp_path)
    assert network.abandoned() == ours
    assert [group.name for group in quota._abandoned_in(tmp_path)] == ours[:1]


def test_a_sweep_starts_nothing_where_nothing_was_left(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "NAMESPACES", tmp_path / "none")
    monkeypatch.setattr(network.subprocess, "run", lambda *_, **__: pytest.fail("something was started"))
    network.sweep()
    quota.sweep()


def test_a_sweep_looks_for_groups_wherever_they_could_have_been_made(tmp_path):
    """Version 2, three levels: a group other than the root cannot have both processes and children."""
    mount, proc = tmp_path / "cgroup", tmp_path / "proc"
    left = f"paceline-{owned_prefix().split('-')[1]}-9999999-0-abc123-0"
    (mount / "a" / "b").mkdir(parents=True)
    (mount / left).mkdir()
    (mount / "a" / left).mkdir()
    (proc / "self").mkdir(parents=True)
    (proc / "mounts").write_text(f"cgroup2 {mount} cgroup2 rw 0 0\n")
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    assert set(quota.abandoned(proc)) == {mount / left, mount / "a" / left}
    quota.sweep(proc)
    assert not quota.abandoned(proc)
