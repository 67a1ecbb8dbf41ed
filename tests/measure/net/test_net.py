"""Figures of a network sweep, and sweeps over threads on a virtual clock."""

import json

import pytest
import torch

from paceline.cli import main
from paceline.comm import patterns
from paceline.comm.thread import run_ranks
from paceline.errors import WrongCommand
from paceline.measure.net.figures import Pair, Row, cost_of, fit_rows, parse_size, sizes_between, slow_pairs
from paceline.measure.net.sweep import VERBS, pairs, sweep
from paceline.types import Link
from tests.forked import paceline


def test_sizes_are_powers_of_two():
    assert parse_size("128M") == 134_217_728
    assert parse_size("4K") == 4096
    assert parse_size("8") == 8
    assert sizes_between(1024, 16384, 4) == (1024, 4096, 16384)


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "1T", "1.5M", "99G"])
def test_a_wrong_size_is_refused(text):
    with pytest.raises(WrongCommand):
        parse_size(text)


def test_sizes_that_do_not_grow_are_refused():
    with pytest.raises(WrongCommand):
        sizes_between(4096, 1024, 4)
    with pytest.raises(WrongCommand):
        sizes_between(1024, 4096, 1)


def test_bus_bandwidth_is_that_of_nccl_tests():
    """64 MiB in 2.000 ms on 8 ranks."""
    figures = {verb: Row("x", verb, 1 << 26, 8, 0.002, 0).busbw / 1e9 for verb in ("all_reduce", "all_gather")}
    assert f"{figures['all_reduce']:.3f}" == "58.720"
    assert f"{figures['all_gather']:.3f}" == "29.360"


def test_one_rank_has_no_bus():
    found = run_ranks(1, lambda comm: list(sweep(comm, "thread", VERBS, (1024, 4096), iter_clock())))[0]
    assert [row.busbw for row in found] == [0.0] * 12
    assert [row.wrong for row in found] == [0] * 12
    assert fit_rows(found[:2]) is None


def iter_clock():
    now = [0.0]

    def clock():
        now[0] += 0.001
        return now[0]

    return clock


class Priced:
    """A comm of threads on which every call takes what its pattern costs on a link, by a clock of its own."""

    def __init__(self, comm, link):
        self._comm, self._link, self.now = comm, link, 0.0

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def clock(self):
        return self.now

    def _pay(self, verb, nbytes, work):
        self.now += cost_of(verb, self._comm.size, nbytes).seconds(self._link)
        return work

    def all_sum(self, src, dst, key=""):
        return self._pay("all_reduce", src.nbytes, self._comm.all_sum(src, dst, key))

    def reduce_scatter(self, src, dst, key=""):
        return self._pay("reduce_scatter", src.nbytes, self._comm.reduce_scatter(src, dst, key))

    def all_gather(self, src, dst, key=""):
        return self._pay("all_gather", dst.nbytes, self._comm.all_gather(src, dst, key))

    def broadcast(self, tensor, root=0, key=""):
        return self._pay("broadcast", tensor.nbytes, self._comm.broadcast(tensor, root, key))

    def mix(self, src, dst, mixing, key=""):
        busy = mixing.sources or mixing.targets
        work = self._comm.mix(src, dst, mixing, key)
        if key == "a pair" or busy:
            self.now += self._link.latency + src.nbytes / self._link.bandwidth
        return work


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_an_injected_link_is_found_again(ranks):
    link = Link(latency=50e-6, bandwidth=1e9)

    def work(comm):
        priced = Priced(comm, link)
        return list(sweep(priced, "thread", VERBS, (1024, 16384, 262144, 1 << 20), priced.clock)), list(
            pairs(priced, priced.clock)
        )

    for rows, between in run_ranks(ranks, work):
        assert not any(row.wrong for row in rows)
        for verb in VERBS:
            fitted = fit_rows([row for row in rows if row.verb == verb])
            assert fitted.latency == pytest.approx(link.latency, rel=0.1), verb
            assert fitted.bandwidth == pytest.approx(link.bandwidth, rel=0.1), verb
        assert len(between) == ranks * (ranks - 1) // 2
        assert between[0].bandwidth == pytest.approx(link.bandwidth, rel=0.1)
        assert between[0].latency == pytest.approx(link.latency, rel=0.1)


def test_wrong_numbers_are_counted():
    """The control: a comm that spoils one element on one rank."""

    class Spoiled(Priced):
        def all_sum(self, src, dst, key=""):
            work = super().all_sum(src, dst, key)
            if key == "all_reduce":
                work.wait()
                self._comm.barrier()
                if self._comm.rank == 0:
                    dst[3] += 1
                self._comm.barrier()
            return work

    def work(comm):
        spoiled = Spoiled(comm, Link(1e-5, 1e9))
        return [row.wrong for row in sweep(spoiled, "thread", ("all_reduce",), (64,), spoiled.clock)]

    assert run_ranks(2, work) == [[2], [2]], "the result is one memory of both ranks"


def test_slow_pairs_are_flagged():
    usual = [Pair(a, b, 1e-5, 1e9) for a, b in ((0, 1), (0, 2), (1, 2), (1, 3), (2, 3))]
    assert slow_pairs(usual) == []
    slow = Pair(0, 3, 1e-5, 5e8)
    late = Pair(0, 3, 9e-5, 1e9)
    assert [pair for pair, _ in slow_pairs([*usual, slow])] == [slow]
    assert "50% of the median bandwidth" in slow_pairs([*usual, slow])[0][1]
    assert [pair for pair, _ in slow_pairs([*usual, late])] == [late]


def test_costs_follow_the_patterns():
    assert cost_of("all_reduce", 4, 400) == patterns.ring_cost(4, 400)
    assert cost_of("sendrecv", 4, 400) == patterns.Cost(1, 400)
    assert torch.float32.itemsize == 4


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_the_command_prints_a_table_and_writes_a_link_that_the_forecast_reads(tmp_path):
    link, plot = tmp_path / "link.json", tmp_path / "net.svg"
    words = ["-np", "2", "--comm", "tcp", "--verbs", "all_reduce", "-b", "1K", "-e", "16K"]
    done = paceline("net", *words, "--link", link, "--plot", plot)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all_reduce over tcp, 2 rank(s)" in done.stdout
    assert "fit: latency" in done.stdout
    assert json.loads(link.read_text())["link"]["bandwidth"] > 0
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--verbs", "all_red"], "it is one of all_reduce"),
        (["--comm", "tpc"], "tcp"),
        (["--comm", "thread"], "for tests"),
        (["-e", "12X"], "such as 4K or 128M"),
        (["-b", "4M", "-e", "1K"], "larger than the last"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(words, why, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["net", *words])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
