"""The text of machines: what it means, and what it refuses."""

import pytest

from paceline.errors import BadMember, UnknownName, WrongCommand
from paceline.forecast.links import of_nccl_tests, with_link
from paceline.forecast.machines import library, read_machines
from paceline.forecast.study import chosen_strategies, chosen_workers


def test_a_text_becomes_a_fabric():
    fabric = read_machines("machines(nodes=16, ranks=8, device=V100, bandwidth=25gbit)").fabric()
    assert (fabric.nodes, fabric.ranks, fabric.size) == (16, 8, 128)
    assert fabric.between.bandwidth == pytest.approx(25e9 / 8)
    assert fabric.inside.bandwidth == 150e9


def test_every_figure_that_is_assumed_is_named():
    told = " ".join(read_machines("machines(nodes=2, device=A100)").assumptions())
    assert all(word in told for word in ("A100 data sheet", "latency", "25gbit", "comm nccl"))


def test_every_device_and_network_names_its_source():
    for kind in ("device", "network"):
        assert all(entry["source"] for entry in library()[kind].values())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("machines(bandwidth=25)", "machines(bandwidth=25): its unit is missing"),
        ("machines(bandwidth=fast)", "it is a number with kbit"),
        ("machines(latency=20)", "its unit is missing"),
        ("machines(latency=0us)", "it is above 0"),
        ("machines(nodes=16, ranks=8", "the parenthesis of machines is not closed"),
        ("machines(nodes=0)", "devices in nodes"),
        ("machines(nodes=many)", "nodes takes a whole number; got many"),
        ("machines(gpus=8)", "got gpus"),
        ("machines(jitter=-1)", "jitter is at least 0"),
        ("cluster(nodes=2)", "machines 'cluster' does not exist"),
        ("machines(device=V10)", "did you mean V100?"),
        ("machines(network=10gbe)", "did you mean 10GbE?"),
        ("machines(comm=mpi)", "comm of machines 'mpi' does not exist"),
    ],
)
def test_a_text_that_cannot_be_read_names_its_part(text, complaint):
    with pytest.raises((BadMember, UnknownName)) as caught:
        read_machines(text)
    assert complaint in str(caught.value)


def test_workers_are_numbers_lists_and_doubling_ranges():
    assert chosen_workers("8..64") == [8, 16, 32, 64]
    assert chosen_workers("8..48") == [8, 16, 32, 48]
    assert chosen_workers("4, 2") == [2, 4]


@pytest.mark.parametrize("text", ["", "eight", "0", "8..", "8..4", "-1", "1e3", "99999999"])
def test_workers_that_are_no_numbers_are_refused(text):
    with pytest.raises(WrongCommand, match="--workers"):
        chosen_workers(text)


def test_strategies_are_known_names():
    assert chosen_strategies("bsp,wfbp, bsp") == ["bsp", "wfbp"]
    assert len(chosen_strategies("all")) > 20
    with pytest.raises(UnknownName, match="did you mean wfbp"):
        chosen_strategies("bsp,wfpb")


NCCL = """# nThread 1 nGpus 4 minBytes 8 maxBytes 134217728
#  Rank  0 Group  0 Pid   1 on  host device  0
#  Rank  1 Group  0 Pid   1 on  host device  1
#  Rank  2 Group  0 Pid   1 on  host device  2
#  Rank  3 Group  0 Pid   1 on  host device  3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    60.10    0.02    0.03      0    60.10    0.02    0.03      0
     1048576        262144     float     sum      -1   165.00    6.35    9.53      0   165.00    6.35    9.53      0
   134217728      33554432     float     sum      -1 13500.00    9.94   14.91      0 13500.00    9.94   14.91      0
"""


def test_a_table_of_nccl_tests_becomes_a_line(tmp_path):
    path = tmp_path / "nccl.txt"
    path.write_text(NCCL)
    line = of_nccl_tests(NCCL, path)
    assert line.latency == pytest.approx(60e-6 / 6, rel=0.05)
    assert line.bandwidth == pytest.approx(14.9e9, rel=0.05)  # its own column busbw
    fabric, told = with_link(read_machines("machines(nodes=2)").fabric(), path)
    assert fabric.between == line
    assert "measured" in told


@pytest.mark.parametrize("text", ["", "{}", "[1]", "busbw", '{"latency": -1, "bandwidth": 5}', "\x00"])
def test_a_file_without_a_link_is_refused(tmp_path, text):
    path = tmp_path / "link"
    path.write_text(text)
    with pytest.raises(WrongCommand):
        with_link(read_machines("machines(nodes=2)").fabric(), path)
