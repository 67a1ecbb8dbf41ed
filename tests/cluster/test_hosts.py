"""Hosts as people write them: three forms, three maps, and messages that name the line."""

from pathlib import Path

import pytest

from paceline.cluster.hosts import mapped, read_cluster, read_hostfile, read_hosts, slots_of, written
from paceline.errors import WrongCommand
from paceline.run.run import Run, hosts_of
from paceline.types import Host

HOSTS = read_hosts("a:2,b:1,c:3")


def test_the_short_form_is_read_and_written():
    assert (Host("a", 2), Host("b", 1), Host("c", 3)) == HOSTS
    assert written(HOSTS) == "a:2,b:1,c:3"
    assert read_hosts("me@node-1.x.org, 10.0.0.7:8") == (Host("node-1.x.org", 1, user="me"), Host("10.0.0.7", 8))
    assert slots_of(HOSTS) == 6


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a:0", "a has 0 slots; a host has 1 to"),
        ("a:-3", "a has -3 slots"),
        ("a:2,a:2", "a is named twice"),
        ("a:two", "'a:two' is no host"),
        ("a,,b", "'' is no host"),
        ("-oProxyCommand=reboot", "is no host"),
        ("a;reboot", "is no host"),
        ("a:99999999", "a host has 1 to 65,536"),
    ],
)
def test_a_wrong_host_is_named(text, why):
    with pytest.raises(WrongCommand, match=why):
        read_hosts(text)


def file(folder, text, name="hosts"):
    path = Path(folder) / name
    path.write_text(text)
    return path


def test_a_hostfile_has_either_form(tmp_path):
    path = file(tmp_path, "# my machines\na slots=4\n\nb:2   # the small one\nme@c max_slots=9 slots=1\nd\n")
    assert read_hostfile(path) == (Host("a", 4), Host("b", 2), Host("c", 1, user="me"), Host("d", 1))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a slots=4\nb slot=2\n", r"hosts, line 2: b slot=2: it has slot, which is none of slots"),
        ("a slots=four", r"line 1: a slots=four: slots is a number; got four"),
        ("a slots=0", r"line 1: a slots=0: a has 0 slots"),
        ("a:4\n\n# c\n?b", r"line 4: \?b: a line is `HOST slots=4`"),
        ("a\n# c\nb\nme@a slots=2", r"a is named twice, in lines 1 and 4"),
        ("# nobody\n", "it names no host"),
    ],
)
def test_a_typing_error_in_a_hostfile_names_its_line(tmp_path, text, why):
    with pytest.raises(WrongCommand, match=why):
        read_hostfile(file(tmp_path, text))


def test_a_cluster_file_says_what_differs_between_hosts(tmp_path):
    text = """
interface = "eth1"
port = 2222
environ = { DATA = "/data", MODE = "x" }
[[hosts]]
name = "a"
slots = 4
[[hosts]]
name = "b"
address = "10.0.0.2"
interface = "ib0"
environ = { DATA = "/b" }
"""
    first, second = read_cluster(file(tmp_path, text))
    assert first == Host("a", 4, interface="eth1", port=2222, environ={"DATA": "/data", "MODE": "x"})
    assert (second.address, second.interface, second.port, second.slots) == ("10.0.0.2", "ib0", 2222, 1)
    assert second.environ == {"DATA": "/b", "MODE": "x"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[hosts]]\nname = "a"\nslot = 3\n', r"line 3.*'slot' is not known here.*did you mean slots"),
        ('[[hosts]]\nname = "a"\nslots = "many"\n', r"slots = 'many'"),
        ("hosts = []\n", "it names no host"),
        ('[[hosts]]\nname = "a"\nslots = 0\n', "host a: a has 0 slots"),
        ('[[hosts]]\nname = "a b"\n', "no name of a host"),
    ],
)
def test_a_typing_error_in_a_cluster_file_is_named(tmp_path, text, why):
    with pytest.raises(WrongCommand, match=why):
        read_cluster(file(tmp_path, text))


@pytest.mark.parametrize(
    ("by", "names"), [("slot", "aabccc"), ("node", "abcacc"), ("2,0,0,1,2,2", "caabcc")], ids=["slot", "node", "list"]
)
def test_ranks_fill_hosts_in_three_ways(by, names):
    assert "".join(host.name for host in mapped(HOSTS, 6, by)) == names
    if by != "2,0,0,1,2,2":
        assert "".join(host.name for host in mapped(HOSTS, 4, by)) == names[:4]


def test_a_rankfile_places_each_rank(tmp_path):
    path = file(tmp_path, "rank 1=a slot=0\nrank 0=c\nrank 2 = a\n", "ranks")
    assert [host.name for host in mapped(HOSTS, 3, f"rankfile:{path}")] == ["c", "a", "a"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rank 0=a\nrang 1=b\n", r"line 2: rang 1=b: a line is `rank 0=HOST`"),
        ("rank 0=a\nrank 1=z\n", "line 2: rank 1=z: z is none of the hosts a:2,b:1,c:3"),
        ("rank 0=a\nrank 0=b\n", "rank 0 has a line already"),
        ("rank 0=a\n", "it has no line for rank 1"),
    ],
)
def test_a_wrong_rankfile_names_its_line(tmp_path, text, why):
    with pytest.raises(WrongCommand, match=why):
        mapped(HOSTS, 2, f"rankfile:{file(tmp_path, text)}")


def test_more_workers_than_slots_are_refused():
    with pytest.raises(WrongCommand, match=r"-np 7 on a:2,b:1,c:3: the hosts have 6 slots in all. try: -np 6"):
        mapped(HOSTS, 7)
    with pytest.raises(WrongCommand, match="it is slot, node"):
        mapped(HOSTS, 2, "socket")


def test_servers_come_after_the_workers():
    assert [host.name for host in mapped(HOSTS, 3, "slot", servers=4)] == ["a", "a", "b", "a", "b", "c", "a"]


def test_a_run_knows_where_its_ranks_are(tmp_path):
    assert Run(workers=4, hosts="a:2,b:2").cluster.nodes == (0, 0, 1, 1)
    assert Run(workers=4, hosts="a:2,b:2", map_by="node").cluster.nodes == (0, 1, 0, 1)
    path = file(tmp_path, "a slots=2\nb slots=2\n")
    assert Run(workers=3, hostfile=str(path)).cluster.nodes == (0, 0, 1)
    assert {host.interface for host in hosts_of(Run(hosts="a,b", network_interface="eth7"))} == {"eth7"}
    with pytest.raises(WrongCommand, match="each of them names the hosts"):
        hosts_of(Run(hosts="a", hostfile=str(path)))
