"""A folder of a family holds one file per member, files that start with an underscore, and traits.py."""

import importlib
from pathlib import Path

import pytest

FAMILIES = (
    *(f"strategy.{name}" for name in ("rules", "exchanges", "topologies", "schedules", "compressors", "memberships")),
    *(f"workload.{name}" for name in ("models", "sources", "computes")),
    "train.references",
    "cluster.launchers",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_files_without_underscore_are_the_modules_of_the_menu(family):
    package = importlib.import_module(f"paceline.{family}")
    files = {path.stem for path in Path(package.__file__).parent.glob("[!_]*.py")} - {"traits"}
    assert files == {where.partition(":")[0].removeprefix(".") for where in package.MENU.members.values()}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.startswith("strategy.")])
def test_every_family_of_strategies_has_its_traits(family):
    assert importlib.import_module(f"paceline.{family}.traits")
