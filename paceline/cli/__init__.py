"""The command line: one file per verb, which parses, calls jobs/ and prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from paceline._version import VERSION
from paceline.errors import PacelineError, Refused
from paceline.launchers.bell import ended_in_order

app = typer.Typer(
    name="paceline",
    help="Train one model on many workers with any strategy, race strategies, see how they scale.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


# typer may carry a click of its own; this is the one that its errors come from.
_UsageProblem: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"paceline {VERSION}")
        raise typer.Exit


@app.callback()
def _paceline(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def _register() -> None:
    from paceline.cli import (  # noqa: F401
        compare,
        doctor,
        explain,
        lab,
        listing,
        models,
        race,
        report,
        reproduce,
        rerun,
        run,
        show,
        strategies,
        topology,
    )


_register()


def main(argv: Sequence[str] | None = None) -> None:
    """Exit code 0 if what was asked was done, 2 for a wrong command, 1 for everything else."""
    words = list(sys.argv[1:] if argv is None else argv)
    script: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, script = words[:at], words[at + 1 :]
    try:
        with ended_in_order():
            code = app(args=words, standalone_mode=False, obj=script)
    except _UsageProblem as problem:
        problem.show()  # type: ignore[attr-defined]
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except PacelineError as problem:
        complain(problem)
        sys.exit(problem.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def complain(problem: PacelineError) -> None:
    """What, why and try; one line each where they are short."""
    if isinstance(problem, Refused):
        for line in problem.problems:
            print(f"error: {_with_try(line)}", file=sys.stderr)
        return
    print(f"error: {_with_try(str(problem))}", file=sys.stderr)


def _with_try(text: str) -> str:
    what, found, remedy = text.partition(". try: ")
    return f"{what}\n  try: {remedy}" if found else what
