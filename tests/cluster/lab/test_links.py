"""Links of a lab: cut and healed, inside an overlay, and refused if they do not have their rate."""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cluster.lab import network as networks
from paceline.cluster.lab.lab import Lab, read_lab
from paceline.cluster.lab.network import ATTEMPTS, Network, running, set_link
from paceline.errors import BadMember, PacelineError, WrongCommand

ROOT = Path(__file__).parents[3]


def test_an_overlay_is_part_of_a_lab():
    lab = read_lab("lab(hosts=2, bandwidth=200mbit, overlay=vxlan)")
    assert read_lab(str(lab)) == lab
    assert lab.goodput < Lab(2, "200mbit").goodput < 25e6
    seats = Network(lab).seats(2)
    assert [(seat.host.address, seat.host.interface) for seat in seats] == [("10.78.0.1", "vx0"), ("10.78.0.2", "vx0")]
    with pytest.raises(BadMember, match="it is none or vxlan"):
        read_lab("lab(overlay=geneve)")


class Measured(Network):
    """A lab whose measurements are known."""

    def __init__(self, *series):
        super().__init__(Lab(2, "200mbit"))
        self.series = list(series)

    def goodput(self, seconds=1.0):
        share = self.series.pop(0)
        return [self.lab.goodput, share * self.lab.goodput]


def test_a_slow_moment_is_measured_again():
    network = Measured(0.5, 0.7, 0.95, 0.1)
    assert min(network.settled_goodput(0.5)) == pytest.approx(0.95 * network.lab.goodput)
    assert network.series == [0.1]


@pytest.mark.parametrize("share", [0.85, 1.15], ids=["too slow", "too fast"])
def test_a_lab_without_its_rate_is_refused(share):
    with pytest.raises(PacelineError, match=r"does not have the rate.*this machine carries 0\.\d Gbit/s in all"):
        Measured(*[share] * ATTEMPTS).settled_goodput(0.5)


def test_a_link_is_cut_only_where_one_lab_runs(monkeypatch):
    monkeypatch.setattr(networks, "check_tools", lambda: None)
    monkeypatch.setattr(networks, "running", list)
    with pytest.raises(WrongCommand, match="no lab is running"):
        set_link(0, "down")
    monkeypatch.setattr(networks, "running", lambda: ["a-switch", "b-switch"])
    with pytest.raises(WrongCommand, match="2 labs are running"):
        set_link(0, "down")
    monkeypatch.setattr(networks, "running", lambda: ["a-switch"])
    monkeypatch.setattr(networks, "_names", lambda: ["a-switch", "a-0", "a-1", "b-0"])
    with pytest.raises(WrongCommand, match="host 2: the lab has hosts 0 to 1"):
        set_link(2, "down")


def reaches(network, source, target):
    code = "import socket, sys; socket.create_connection((sys.argv[1], 29401), timeout=1)"
    words = [sys.executable, "-S", "-c", code, network.address(target)]
    return subprocess.run([*network.prefix(source), *words], capture_output=True, check=False).returncode == 0


def listening(network, host):
    code = "import socket; d = socket.create_server(('', 29401)); print('up', flush=True)\nwhile True: d.accept()"
    words = [*network.prefix(host), sys.executable, "-S", "-c", code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    return process


@pytest.mark.root
@pytest.mark.multi
@pytest.mark.parametrize("overlay", ["none", "vxlan"])
def test_a_host_is_cut_and_healed(overlay):
    with Network(Lab(2, "200mbit", overlay)) as network:
        process = listening(network, 1)
        try:
            assert reaches(network, 0, 1)
            network.cut(1)
            assert not reaches(network, 0, 1)
            network.heal(1)
            assert any(reaches(network, 0, 1) for _ in range(5))
            assert any(network._name in name for name in running())
        finally:
            process.kill()
            process.wait()


@pytest.mark.root
@pytest.mark.multi
def test_an_overlay_carries_what_its_headers_leave():
    with Network(Lab(2, "100mbit", "vxlan")) as network:
        before = network.received()
        rates = network.settled_goodput(0.5)
        moved = [now - then for now, then in zip(network.received(), before, strict=True)]
    assert all(rate == pytest.approx(network.lab.goodput, rel=0.1) for rate in rates)
    assert min(moved) > 0.5 * min(rates), "it travels over the shaped interfaces"


@pytest.mark.root
@pytest.mark.multi
def test_an_overlay_sends_data_to_one_host_only():
    with Network(Lab(4, "20mbit", "vxlan")) as network:
        before = network.sent()
        rates = network.goodput(1.0)  # and 0.3 s at the start that are not measured
        moved = [now - then for now, then in zip(network.sent(), before, strict=True)]
    data = 1.3 * sum(rates) / len(rates)
    assert max(moved) < 1.6 * data, "copies for the two other hosts would make it three times as much"
