"""Turn the errors of the option parser into errors of paceline: what, why and try."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from paceline.cli.help import ORDER
from paceline.errors import UnknownName, WrongCommand, short
from paceline.files.wanted import wanted


def in_our_words(problem: Any, words: Sequence[str]) -> WrongCommand:
    """Return an error of the option parser as a WrongCommand."""
    verb = problem.ctx.command_path if getattr(problem, "ctx", None) else "paceline"
    name = getattr(problem, "option_name", "")
    if type(problem).__name__ == "NoSuchOption":
        return _no_such_option(name, problem.ctx, verb)
    command = re.match(r"No such command '(.*?)'\.", problem.message)
    if command:
        return UnknownName("command", command[1], ORDER)
    param = getattr(problem, "param", None)
    if type(problem).__name__ == "MissingParameter" and param is not None:
        return WrongCommand(f"{verb} needs {param.metavar or param.name.upper()}", remedy=f"{verb} --help")
    if param is not None:
        return _wrong_value(param, problem.message, words)
    if extra := re.match(r"Got unexpected extra argument\S* \((.*)\)", problem.format_message()):
        return WrongCommand(f"{verb} ... {short(extra[1])}", why="that is a word too many", remedy=f"{verb} --help")
    return WrongCommand(short(problem.format_message().rstrip("."), 400), remedy=f"{verb} --help")


def _no_such_option(name: str, context: Any, verb: str) -> WrongCommand:
    known = [flag for param in context.command.params for flag in param.opts] if context else []
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? " if near else ""
    return WrongCommand(f"option {short(name)!r} does not exist", remedy=f"{hint}{verb} --help lists all")


def _wrong_value(param: Any, message: str, words: Sequence[str]) -> WrongCommand:
    flag = param.opts[0]
    why, example = wanted(message)
    what = f"{flag} {short(_value(param.opts, words))}".strip()
    return WrongCommand(what, why=short(why, 400), remedy=f"{flag} {example}" if example else "")


def _value(flags: Sequence[str], words: Sequence[str]) -> str:
    """Return the last value of a flag on the command line."""
    last = ""
    for k, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            last = value if equals else "".join(words[k + 1 : k + 2])
    return last
