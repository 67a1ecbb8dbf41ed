"""The command line: one file per verb. A verb parses its flags, calls the package that does the work, and prints."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from paceline._version import VERSION
from paceline.cli.help import Command, Verbs
from paceline.cli.usage import in_our_words
from paceline.cluster.stop_requests import Ended, ended_in_order
from paceline.errors import PacelineError, Refused, Stopped, WrongCommand


class App(typer.Typer):
    """The typer application; every verb in it is a Command."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, **{"cls": Command, **settings})


app = App(
    name="paceline",
    cls=Verbs,
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
        advise,
        chaos,
        compare,
        data,
        doctor,
        explain,
        forecast,
        join,
        lab,
        listing,
        models,
        net,
        race,
        report,
        reproduce,
        rerun,
        run,
        show,
        strategies,
        topology,
        watch,
    )


_register()


def main(argv: Sequence[str] | None = None) -> None:
    """Carry out a command. Exit code: 0 if it was done, 2 if it was wrong, 128 + N after a signal, else 1."""
    words = list(sys.argv[1:] if argv is None else argv)
    script: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, script = words[:at], words[at + 1 :]
    ended = Ended()
    try:
        with ended_in_order(ended):
            _check_place()
            code = app(args=words, prog_name="paceline", standalone_mode=False, obj=script)
    except Stopped as stopped:
        _leave(stopped)
    except (typer.Abort, KeyboardInterrupt):
        _leave(Stopped(signal.SIGINT))
    except Exception as problem:
        if ended.number is not None:  # libraries may have turned the signal into another exception
            _leave(Stopped(ended.number))
        _fail(problem, words)
    sys.exit(code if isinstance(code, int) else 0)


def _leave(stopped: Stopped) -> NoReturn:
    print("interrupted" if stopped.signal == signal.SIGINT else stopped, file=sys.stderr)
    sys.exit(stopped.exit_code)


def _fail(problem: Exception, words: Sequence[str]) -> NoReturn:
    if type(problem).__name__ == "NoArgsIsHelpError":
        problem.show()  # type: ignore[attr-defined]
        sys.exit(2)
    if isinstance(problem, _UsageProblem):
        problem = in_our_words(problem, words)
    if isinstance(problem, PacelineError):
        complain(problem)
        sys.exit(problem.exit_code)
    raise problem


def _check_place() -> None:
    try:
        os.getcwd()
    except OSError:
        raise WrongCommand(
            "the working directory is gone", why="it was deleted or moved", remedy="cd into a folder that exists"
        ) from None


def complain(problem: PacelineError) -> None:
    """Print an error: what is wrong, why, and on a second line what to try."""
    if isinstance(problem, Refused):
        for line in problem.problems:
            print(f"error: {_with_try(line)}", file=sys.stderr)
        return
    print(f"error: {_with_try(str(problem))}", file=sys.stderr)


def _with_try(text: str) -> str:
    what, mark, remedy = text.partition(". try: ")
    return f"{what}\n  try: {remedy}" if mark else what
