"""Options of verbs: those of a run are made from the fields of Run, and output options are shared by many verbs."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_origin

import typer
from pydantic import ValidationError

from paceline.cli.help import HelpAll
from paceline.cli.words import settings_of
from paceline.cluster.hosts import slots_of
from paceline.errors import UnknownName, WrongCommand, short
from paceline.files.wanted import wanted
from paceline.run.fields import Panel
from paceline.run.run import Run, about, flag_of, hosts_of

OUTPUT = Panel.OUTPUT.value


def _local(context: typer.Context, runs: Path) -> Path:
    """Return the folder for records. An object store is mirrored in a folder, whose new files go there at the end."""
    address = re.sub(r"^s3:/+", "s3://", str(runs))  # pathlib has collapsed the two slashes
    if context.resilient_parsing or not address.startswith("s3://"):
        return runs
    from paceline.measure.record.mirror import Mirror

    mirror = Mirror(address)
    mirror.pull()

    def push() -> None:
        if names := mirror.push():
            print(f"uploaded to {mirror.address}: {len(names)} file(s), {names[0]} first", file=sys.stderr)

    context.call_on_close(push)
    return mirror.folder


Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        envvar="PACELINE_RUNS",
        show_envvar=False,
        help="Folder for the records, or s3://BUCKET/PREFIX.",
        rich_help_panel=OUTPUT,
        callback=_local,
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Also write the result to this JSON file.", rich_help_panel=OUTPUT)
]


class Changed(NamedTuple):
    """The properties in which an option of a verb differs from the field of Run."""

    kind: Any = None
    help: str = ""
    unset: str = ""
    default: Any = None
    flags: tuple[str, ...] = ()


def parameter(name: str, changed: Changed | None = None) -> inspect.Parameter:
    """Return the parameter of a verb's signature for one field of Run."""
    known, field = about(name), Run.model_fields[name]
    default = field.default if changed is None else changed.default
    unset = (changed and changed.unset) or (known.unset if default is None else "")
    option = typer.Option(
        *(known.flags or (flag_of(name),)),
        *known.published,
        *(changed.flags if changed else ()),
        help=_with_default((changed and changed.help) or known.help, unset),
        show_default=not unset,
        rich_help_panel=known.panel.value,
    )
    kind = (changed and changed.kind) or (str if get_origin(field.annotation) is Literal else field.annotation)
    return _keyword(name, Annotated[kind, option], default)


def _with_default(text: str, unset: str) -> str:
    return f"{text}  [default: {unset}]" if unset else text


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _published() -> list[inspect.Parameter]:
    """Return the flags of other benchmarks that set a value of another flag, such as --use-fp16."""
    panel = Panel.WORK.value
    location = typer.Option(
        "--fake-location",
        help="gpu is the same as --source fake(device), cpu as --source fake(cpu).",
        hidden=True,
        rich_help_panel=panel,
    )
    half = typer.Option("--use-fp16", help="The same as --precision fp16.", hidden=True, rich_help_panel=panel)
    return [
        _keyword("fake_location", Annotated[str | None, location], None),
        _keyword("use_fp16", Annotated[bool, half], False),
    ]


Verb = Callable[..., None]


def takes_run(names: Iterable[str] = tuple(Run.model_fields), **changes: Changed) -> Callable[[Verb], Verb]:
    """Give a verb the options of these fields of Run; the verb gets their values as one mapping, `values`.

    Typer reads options from a signature, so the decorator makes a signature from the descriptions of the fields.
    """
    made = [parameter(name, changes.get(name)) for name in names]
    if set(names) == set(Run.model_fields):
        made += _published()
    last = [_keyword("help_all", Annotated[bool, HelpAll], False)] if any(about(n).published for n in names) else []

    def decorate(verb: Verb) -> Verb:
        own = inspect.signature(verb, eval_str=True).parameters

        @functools.wraps(verb)
        def called(**options: Any) -> None:
            options.pop("help_all", None)
            values = {option.name: options.pop(option.name) for option in made}
            verb(**options, values=values)

        rest = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in own.values()]
        first = next(k for k, option in enumerate(rest) if option.name == "values")
        signature = inspect.Signature([*rest[:first], *made, *rest[first + 1 :], *last])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {option.name: option.annotation for option in signature.parameters.values()}
        return called

    return decorate


DEFAULTS = Run()

LOCATIONS = {"gpu": "fake(device)", "cpu": "fake(cpu)"}


def run_from(values: Mapping[str, Any], words: Sequence[str] = (), chosen: Collection[str] = ()) -> Run:
    """Return a Run from flags and `key=value` words; pydantic's errors become WrongCommand.

    `chosen` are the flags that stand on the command line; a word that contradicts one of them is refused.
    """
    settings = {name: value for name, value in values.items() if name in Run.model_fields}
    location = values.get("fake_location")
    if location is not None:
        if location not in LOCATIONS:
            raise UnknownName("fake location", location, LOCATIONS)
        settings["source"] = LOCATIONS[location]
    if values.get("use_fp16"):
        settings["precision"] = "fp16"
    flags = {name: values[name] for name in chosen}
    settings.update(settings_of(words, lambda text: print(f"note: {text}", flush=True), flags))
    try:
        run = Run.model_validate(settings)
    except ValidationError as problem:
        raise wrong_value(problem) from None
    return run if "workers" in chosen or run.workers != DEFAULTS.workers else _on_all_slots(run)


def _on_all_slots(run: Run) -> Run:
    """Without -np, start one worker for each slot of the named hosts."""
    hosts = hosts_of(run)
    return run.with_(workers=slots_of(hosts)) if hosts else run


def wrong_value(problem: ValidationError, flags: Mapping[str, str] = {}) -> WrongCommand:
    """Return the first error of pydantic as what, why and try; `flags` has the flags of names that are not in Run."""
    first = problem.errors()[0]
    name = next((str(part) for part in reversed(first["loc"]) if isinstance(part, str)), "")
    flag = flags.get(name) or flag_of(name)
    value = first["input"]
    what = f"{flag} {short(f'{value:.15g}' if isinstance(value, float) else str(value))}"
    if first["type"] == "literal_error":
        words = [word.strip(" '") for word in str(first["ctx"]["expected"]).replace(" or ", ",").split(",")]
        return WrongCommand(what, why=f"it is {_either(words)}", remedy=f"{flag} {words[0]}")
    why, example = wanted(str(first["msg"]))
    return WrongCommand(what, why=why, remedy=f"{flag} {example}" if example else "")


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]])
