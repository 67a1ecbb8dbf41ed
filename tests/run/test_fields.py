"""Every field of a run is described once, and lists of names follow from the descriptions."""

import math

import pytest

from paceline.run.fields import About, Kind
from paceline.run.run import AXES, GRID, TO_LAUNCHER, TO_SCRIPTS, Run, about, changing, flag_of


@pytest.mark.parametrize("name", Run.model_fields)
def test_every_field_of_a_run_has_a_kind_and_a_help_text(name):
    known = about(name)
    assert isinstance(known.kind, Kind)
    assert (known.help.endswith(".") and known.help[0].isupper()) or known.help.startswith(("fp32", "real"))


def test_a_field_without_a_description_is_an_error(monkeypatch):
    monkeypatch.setattr(Run.model_fields["seed"], "json_schema_extra", None)
    with pytest.raises(TypeError):
        about("seed")


def test_axes_are_those_of_the_menus():
    assert AXES == ("rule", "exchange", "topology", "schedule", "compressor", "membership")
    assert set(AXES) < set(TO_SCRIPTS)
    assert set(AXES) < set(GRID)
    assert {"threads", "launcher", "lab", "cpus"} <= set(TO_LAUNCHER)


def test_what_moves_bytes_elsewhere_changes_neither_result_nor_work():
    assert not {"comm", "nodes", "lab", "deadline", *AXES} & {*changing("result"), *changing("work")}
    assert {"precision", "optimizer", "batch_size"} <= {*changing("result")} & {*changing("work")}
    assert {"compile", "memory_format", "source"} <= {*changing("work")} - {*changing("result")}


def test_a_flag_is_spelled_as_its_field_says():
    assert (flag_of("workers"), flag_of("batch_size"), flag_of("peak_flops")) == ("-np", "--batch-size", "--peak-flops")


@pytest.mark.parametrize(
    ("bounds", "value", "why"),
    [
        ({"least": 1, "unit": "worker"}, 0, "at least 1 worker is needed"),
        ({"least": 1}, 0, "it is at least 1"),
        ({"least": 0, "most": 9}, -1, "it cannot be negative"),
        ({"least": 0, "most": 9}, 10, "at most 9 can be asked for"),
        ({"above": 0, "why": "above 0"}, 0.0, "above 0"),
        ({"above": 0, "why": "above 0"}, math.nan, "above 0"),
        ({"above": 0, "most": 1e9, "why": "finite"}, math.inf, "finite"),
        ({"least": 0, "most": 9}, 9, ""),
        ({}, -5, ""),
    ],
)
def test_a_number_out_of_bounds_is_explained(bounds, value, why):
    assert About(kind=Kind.WORK, help="", **bounds).problem(value) == why
