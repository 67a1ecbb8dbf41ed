"""The words of the published individual mode: dnn=resnet50 bs=64 nworkers=4 threshold=8388608.

dnn bs nworkers senlen     model, batch size, workers, sequence length
compressor                 none, topk, gtopk, signum, ...: with feedback where the published code had it
threshold                  elements (not megabytes) that are fused into one message; 0 is every tensor by itself
mgwfbp=1 bytescheduler=1   the schedule of that name, one of them; it decides what is fused, whatever threshold says
nservers                   dedicated parameter servers
rdma                       noted as not applicable

A word is refused beside another word, or a flag, that says something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from paceline.errors import UnknownName, WrongCommand

COMPRESSORS = {
    "topk": "feedback(topk(ratio=0.01))",
    "eftopk": "feedback(topk(ratio=0.01))",
    "gtopk": "feedback(gtopk(ratio=0.01))",
    "signum": "sign(momentum=0.9)",
    "efsignum": "feedback(efsign)",
}
BYTES_PER_ELEMENT = 4


class Said(NamedTuple):
    """A word, and the value that it gives to a setting."""

    word: str
    value: str


def settings_of(
    words: Sequence[str], note: Callable[[str], None], flags: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """What `key=value` words stand for, as settings of a run. `flags` are those that stand on the command line."""
    found: dict[str, Said] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise WrongCommand(
                f"{word!r} is not understood", why="words after run are key=value", remedy=f"-- python {word}"
            )
        if key not in WORDS:
            raise UnknownName("word", key, WORDS)
        if key == "rdma":
            note(f"{word} is not applicable: shm, gloo or nccl move the bytes")
        for name, meant in WORDS[key](word, value).items():
            found[name] = _agreed(found.get(name), Said(word, meant), note)
    for name, said in found.items():
        if name in flags and str(flags[name]) != said.value:
            _refuse(said.word, f"--{name.replace('_', '-')} {flags[name]}")
    return {name: said.value for name, said in found.items()}


def _agreed(first: Said | None, second: Said, note: Callable[[str], None]) -> Said:
    """Of two words for one setting, the one that counts: a schedule by name wins over threshold."""
    if first is None or first.value == second.value:
        return second
    named = [said for said in (first, second) if not said.word.startswith("threshold=")]
    if len(named) != 1:
        _refuse(second.word, first.word)
    idle = second if named[0] is first else first
    note(f"{idle.word} is not used: {named[0].word} decides what travels together")
    return named[0]


def _refuse(word: str, other: str) -> NoReturn:
    raise WrongCommand(f"{word} beside {other}", why="they say different things", remedy="give one of them")


def _plain(name: str) -> Callable[[str, str], dict[str, str]]:
    return lambda word, value: {name: value}


def _whole(word: str, value: str) -> int:
    if not value.isdecimal():
        raise WrongCommand(word, why=f"{value or 'nothing'} is not a whole number")
    return int(value)


def _threshold(word: str, value: str) -> dict[str, str]:
    elements = _whole(word, value)
    return {"schedule": f"fusion(mb={elements * BYTES_PER_ELEMENT / (1 << 20):g})" if elements else "wfbp"}


def _switch(schedule: str) -> Callable[[str, str], dict[str, str]]:
    return lambda word, value: {"schedule": schedule} if _whole(word, value) else {}


def _servers(word: str, value: str) -> dict[str, str]:
    servers = _whole(word, value)
    return {"exchange": f"ps(servers={servers}, colocated=false)"} if servers else {}


WORDS: dict[str, Callable[[str, str], dict[str, str]]] = {
    "dnn": _plain("model"),
    "bs": _plain("batch_size"),
    "nworkers": _plain("workers"),
    "senlen": _plain("sequence_length"),
    "rdma": lambda word, value: {},
    "compressor": lambda word, value: {"compress": COMPRESSORS.get(value, value)},
    "threshold": _threshold,
    "mgwfbp": _switch("mgwfbp"),
    "bytescheduler": _switch("priority"),
    "nservers": _servers,
}
