"""Forecasts of strategies times workers, as text and as records."""

import json

import pytest

from paceline.cli import main
from paceline.errors import Refused
from paceline.forecast.calibrate import calibrate
from paceline.forecast.fabric import Fabric, Line
from paceline.forecast.job import Job, Members
from paceline.forecast.machines import read_machines
from paceline.forecast.records import record_of
from paceline.forecast.rounds import Rounds
from paceline.forecast.study import chosen_strategies, members_of, study
from paceline.forecast.text import WIDTH, spoken
from paceline.measure.record.record import Record
from paceline.protocols import Wire
from paceline.run.run import Run
from paceline.strategy import exchanges
from paceline.strategy.compressors.none import NoCompression
from paceline.strategy.exchanges._costs import load
from paceline.types import Chunk, Layout, Slot

MACHINES = read_machines("machines(nodes=4, ranks=4, device=V100, bandwidth=10gbit)")
NAMES = ("limit", "ddp", "bsp", "wfbp", "dear", "parameter_server", "neighbor_allreduce")


@pytest.fixture(scope="module")
def found():
    known = calibrate("resnet18", machines=MACHINES, batch=32)
    run = Run(model="resnet18", batch_size=32)
    return study(run, NAMES, [2, 4, 16], MACHINES.fabric(), known, assumptions=MACHINES.assumptions())


def test_nobody_is_faster_than_the_limit(found):
    for workers in found.workers:
        rates = {point.strategy: point.outlook.rate for point in found.at(workers)}
        assert max(rates.values()) == pytest.approx(rates["limit"])


def test_one_server_is_a_bottleneck_that_grows(found):
    rates = [point.outlook.efficiency for point in found.of("parameter_server")]
    assert rates == sorted(rates, reverse=True)
    assert found.knee("parameter_server") == 2


def test_more_workers_of_the_limit_always_pay(found):
    assert found.knee("limit") is None


def test_two_strategies_change_places_at_their_break_even(found):
    for bandwidth in found.break_even("bsp", "parameter_server", 16):
        steps = []
        for factor in (0.5, 2.0):
            place = MACHINES.with_bandwidth(bandwidth * factor).fabric()
            both = study(found.run, ("bsp", "parameter_server"), [16], place, found.calibration)
            steps.append(both.points[0].outlook.step - both.points[1].outlook.step)
        assert steps[0] * steps[1] < 0


def test_a_forecast_fits_on_the_screen_and_says_what_it_is(found):
    lines = spoken(found, None, price=3.0)
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert "changes convergence: compare accuracy, not only speed" in text
    assert "no certificate" in text
    assert "V100 data sheet" in text
    assert "an epoch of 1,281,167 samples" in text


def test_a_point_becomes_a_record_that_reads_again(found):
    point = found.at(16)[0]
    record = record_of(found, point, (0.9, 1.1))
    again = Record.model_validate(json.loads(record.to_json()))
    assert (again.kind, again.workers) == ("forecast", 16)
    assert again.rate["total"]["low"] == pytest.approx(0.9 * point.outlook.rate)
    parts = again.breakdown
    assert sum(parts[name] for name in parts if name != "step") == pytest.approx(parts["step"], rel=0.02)


def test_a_strategy_that_does_not_exist_at_that_size_is_listed_with_its_reason():
    fabric = Fabric(nodes=3, ranks=2)
    with pytest.raises(Refused):
        members_of(Run(exchange="hierarchical(4x4)"), "allreduce", fabric)
    run = Run(model="resnet18", exchange="hierarchical(4x4)")
    refused = study(run, ["allreduce"], [6], fabric, calibrate("resnet18", step=0.1))
    assert refused.points[0].outlook is None
    assert "needs 16 ranks" in refused.points[0].problem


def test_every_strategy_has_a_forecast():
    known = calibrate("resnet18", machines=MACHINES, batch=32)
    run = Run(model="resnet18", batch_size=32, optimizer="sgd(lr=0.01)")
    points = study(run, chosen_strategies("all"), [16], MACHINES.fabric(), known).points
    assert [point.strategy for point in points if point.outlook is None] == []


@pytest.mark.parametrize("word", ["allreduce", "ps", "ps(servers=2)", "hierarchical", "neighbor(exp2)", "window(ring)"])
def test_a_direct_round_receives_what_the_exchange_declares(word):
    """The forecast asks for one size and scales; the busiest worker must receive as much as for a whole chunk."""
    exchange = exchanges.MENU.make(word)
    fabric = Fabric(nodes=4, ranks=2, between=Line(0.0, 1e9), algorithm="direct", scatter="direct")
    nbytes = 8 << 20
    layout = Layout((Slot("a", nbytes // 4),))
    declared = load(exchange, NoCompression(), [(layout, Chunk(0, 0, nbytes // 4))], fabric.cluster)
    stages = Rounds(exchange, fabric).of_wire(Wire("sum", nbytes))
    assert sum(stage.received for stage in stages) == pytest.approx(max(declared.received[:8]), rel=0.05)


def test_half_of_a_wire_takes_half_of_the_time():
    known = calibrate("resnet18", step=0.2, batch=32)
    run = Run(model="resnet18")
    axes, _ = members_of(run, "bsp", MACHINES.fabric())
    members = Members(axes.rule, axes.exchange, axes.schedule, axes.compressor)
    slow, fast = (
        Job(members, known.profile, MACHINES.with_bandwidth(nbytes).fabric()).outlook() for nbytes in (1e8, 2e8)
    )
    assert slow.exposed == pytest.approx(2 * fast.exposed, rel=0.05)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--machines", "machines(bandwidth=25)"], "machines(bandwidth=25): its unit is missing"),
        (["--machines", "machines(nodes=2"], "is not closed"),
        (["--strategy", "alreduce"], "did you mean allreduce"),
        (["--workers", "many"], "--workers many"),
        (["--step-time", "-1"], "--step-time -1"),
        (["--profile", "/nowhere/p.json"], "/nowhere/p.json"),
        (["--precision", "int8"], "it is fp32, bf16 or fp16"),
        (["--quick"], "--check --quick"),
    ],
)
def test_a_wrong_command_says_what_and_what_to_try(words, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["forecast", *words])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_command_writes_records(tmp_path, capsys):
    out = tmp_path / "forecast.json"
    words = ["--model", "resnet18", "--strategy", "bsp,wfbp", "--workers", "8,16", "--json", str(out)]
    with pytest.raises(SystemExit) as caught:
        main(["forecast", *words, "--runs", str(tmp_path)])
    assert caught.value.code == 0
    assert [values["kind"] for values in json.loads(out.read_text())] == ["forecast"] * 4
    assert "forecast: resnet18" in capsys.readouterr().out


def test_the_simulated_steps_become_a_trace(tmp_path, capsys):
    out = tmp_path / "trace.json"
    words = ["--model", "mlp", "--step-time", "0.1", "--strategy", "wfbp", "--trace", str(out), "--runs", str(tmp_path)]
    with pytest.raises(SystemExit) as caught:
        main(["forecast", *words])
    assert caught.value.code == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {"forward", "backward", "chunk 0"} <= {event["name"] for event in events}
    assert "trace of wfbp" in capsys.readouterr().out
