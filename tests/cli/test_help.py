"""--help groups flags, shows examples, fits in 80 columns and hides the flags of published scripts."""

import re
import shlex

import pytest
import typer

from paceline.cli import app, main
from paceline.cli.help import EXAMPLES, FORMS
from paceline.run.fields import Panel
from paceline.run.run import Run, about, flag_of

VERBS = typer.main.get_command(app).commands


def shown(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert not end.value.code
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("verb", ["", *VERBS, *FORMS])
def test_help_fits_in_eighty_columns(verb, capsys):
    assert max(map(len, shown(capsys, *verb.split(), "--help").splitlines())) <= 80


def test_summaries_are_whole_and_verbs_ordered_by_use(capsys):
    text = shown(capsys, "--help")
    assert "..." not in text.partition("Commands:")[2]
    verbs = [line.split()[0] for line in text.splitlines() if line[:2] == "  " and line[2:3].isalpha()]
    assert verbs[-len(VERBS) :][:2] == ["race", "run"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_two_examples_that_can_be_parsed(verb, capsys):
    assert len(EXAMPLES[verb]) == 2
    text = shown(capsys, verb, "--help")
    group = typer.main.get_command(app)
    for example in EXAMPLES[verb]:
        assert f"paceline {example}" in text
        words = shlex.split(example.partition(" -- ")[0])
        with group.make_context("paceline", list(words)) as context:
            _, command, rest = group.resolve_command(context, list(words))
            command.make_context(command.name, rest, parent=context).close()


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_verb_has_help_of_its_own(form, capsys):
    text = shown(capsys, *form.split(), "x", "-h")
    assert text.startswith(f"Usage: paceline {form} ")
    flags = {flag for param in VERBS[form.split()[0]].params for flag in param.opts}
    assert set(re.findall(r"^  (--\w+) ", text, re.M)) <= flags


@pytest.mark.parametrize("verb", ["run", "explain"])
def test_every_field_of_a_run_is_a_flag_in_its_panel(verb, capsys):
    text = shown(capsys, verb, "--help")
    for panel in Panel:
        part = text.partition(f"\n{panel.value}:\n")[2].partition("\n\n")[0]
        for name in Run.model_fields:
            if about(name).panel is panel:
                assert f"  {flag_of(name)}" in part, name


def test_flags_of_published_scripts_are_shown_by_help_all_only(capsys):
    hidden = [
        "--dist-optimizer",
        "--variable-update",
        "--use-xla-compile",
        "--compress ",
        "--fake-location",
        "--use-fp16",
    ]
    brief, everything = shown(capsys, "run", "--help"), shown(capsys, "run", "--help-all")
    assert [flag for flag in hidden if flag in brief] == []
    assert [flag for flag in hidden if flag not in everything] == []


def test_a_new_field_of_a_run_becomes_a_flag(monkeypatch):
    from paceline.cli.options import takes_run
    from paceline.run.run import WORK, field

    monkeypatch.setitem(Run.model_fields, "dropout", field(0.5, WORK, "Share of activations that are dropped."))
    Run.model_fields["dropout"].annotation = float
    seen = {}

    @takes_run(("dropout",))
    def verb(values: dict[str, float]) -> None:
        seen.update(values)

    lonely = typer.Typer()
    lonely.command()(verb)
    lonely(["--dropout", "0.1"], standalone_mode=False)
    assert seen == {"dropout": 0.1}


def test_the_echoed_command_keeps_what_was_chosen():
    run = Run(workers=2, model="mlp", optimizer=Run().optimizer)
    assert run.text == "paceline run -np 2 --model mlp"
    assert run.command(["optimizer", "compile", "steps", "workers"]).endswith(f"--optimizer '{Run().optimizer}'")
