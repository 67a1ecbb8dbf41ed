"""The words of the published individual mode: dnn=resnet50 bs=64 nworkers=4 threshold=8388608.

dnn bs nworkers senlen     model, batch size, workers, sequence length
compressor                 none, topk, eftopk, gtopk (0.001 of the elements, as published), signum, efsignum, or any
threshold                  elements (not megabytes) that are fused into one message; 0 sends every tensor by itself
mgwfbp=1 bytescheduler=1   the schedule of that name, one of them; it decides what is fused, whatever threshold says
mgwfbp=0                   sends every tensor by itself, unless another word or flag decides what is fused
nservers                   dedicated parameter servers
rdma debug                 noted as not applicable

A word that contradicts another word or a flag is refused. If a word has another meaning here than in the published
scripts, a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from paceline.errors import UnknownName, WrongCommand, short
from paceline.run.run import flag_of
from paceline.run.strategies import STRATEGIES

COMPRESSORS = {
    "topk": "topk(ratio=0.001)",
    "eftopk": "feedback(topk(ratio=0.001))",
    "gtopk": "feedback(gtopk(ratio=0.001))",
    "signum": "sign(momentum=0.9)",
    "efsignum": "feedback(efsign)",
}
BYTES_PER_ELEMENT = 4
ALONE = "wfbp"  # the schedule of tensors that travel one by one
NOT_APPLICABLE = {
    "rdma": "shm, gloo or nccl move the bytes",
    "debug": "run starts what it is asked for, and paceline explain shows it without a start",
}
DIFFERENT = {
    "compressor=signum": "the published script takes the sign of the gradient, without momentum: compressor=sign",
    "compressor=efsignum": "the published script feeds back around the plain sign, which is not contractive",
}


class WordChoice(NamedTuple):
    """A `key=value` word of the command line, and the value that it gives to a setting."""

    word: str
    value: str

    @property
    def key(self) -> str:
        return self.word.partition("=")[0]

    @property
    def weight(self) -> int:
        """Priority among words for one setting: a schedule by name, then threshold, then mgwfbp=0."""
        if self.key == "mgwfbp" and self.value == ALONE:
            return 0
        return 1 if self.key == "threshold" else 2


def settings_of(
    words: Sequence[str], note: Callable[[str], None], flags: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """Return the settings of a run that `key=value` words set. `flags` are the flags on the same command line."""
    choices: dict[str, WordChoice] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise WrongCommand(
                f"{short(word)!r} is not understood",
                why="words after run are key=value",
                remedy=f"-- python {short(word)}" if word.endswith(".py") else f"dnn={short(word)}",
            )
        if key not in WORDS:
            raise UnknownName("word", key, WORDS)
        if key in NOT_APPLICABLE:
            note(f"{word} is not applicable: {NOT_APPLICABLE[key]}")
        for name, meant in WORDS[key](word, value).items():
            choices[name] = _agreed(choices.get(name), WordChoice(word, meant), note)
    for name, choice in list(choices.items()):
        if not choice.weight and _says_otherwise(flags):
            del choices[name]
        elif name in flags and str(flags[name]) != choice.value:
            _refuse(choice.word, f"{flag_of(name)} {flags[name]}")
        elif not choice.weight and "strategy" in flags:
            _refuse(choice.word, f"--strategy {flags['strategy']}")
    for difference in _differences(choices):
        note(difference)
    return {name: choice.value for name, choice in choices.items()}


def _says_otherwise(flags: Mapping[str, Any]) -> bool:
    """Return whether a flag decides what is fused, so that mgwfbp=0 has no effect."""
    named = STRATEGIES.get(str(flags.get("strategy")))
    schedule = str(flags.get("schedule") or (named.schedule if named else ""))
    return not schedule.startswith("mgwfbp") and bool({"schedule", "strategy"} & set(flags))


def _differences(choices: Mapping[str, WordChoice]) -> Iterator[str]:
    """Yield notes on words that mean something else in the published scripts."""
    compress, schedule = choices.get("compressor"), choices.get("schedule")
    if compress is None or compress.value == "none":
        return
    if compress.word in DIFFERENT:
        yield f"{compress.word} is {compress.value} here: {DIFFERENT[compress.word]}"
    if schedule is not None:
        yield (
            f"{schedule.word} holds beside {compress.word} here: "
            "the published script fuses 67,108,864 elements with any compressor"
        )


def _agreed(first: WordChoice | None, second: WordChoice, note: Callable[[str], None]) -> WordChoice:
    """Choose between two words for one setting, or refuse them."""
    if first is None:
        return second
    idle, used = sorted((first, second), key=lambda choice: choice.weight)
    if first.value == second.value:
        return used
    if first.key == second.key or idle.weight == used.weight:
        _refuse(second.word, first.word)
    if idle.weight:
        note(f"{idle.word} is not used: {used.word} decides what travels together")
    return used


def _refuse(word: str, better: str) -> NoReturn:
    raise WrongCommand(
        f"{short(word)} beside {short(better)}", why="they say different things", remedy="give one of them"
    )


def _plain(name: str) -> Callable[[str, str], dict[str, str]]:
    return lambda word, value: {name: value}


def _whole(word: str, value: str) -> int:
    if not value.isdecimal():
        raise WrongCommand(short(word), why=f"{short(value) or 'nothing'} is not a whole number")
    return int(value)


def _threshold(word: str, value: str) -> dict[str, str]:
    elements = _whole(word, value)
    return {"schedule": f"fusion(mb={elements * BYTES_PER_ELEMENT / (1 << 20):.17g})" if elements else ALONE}


def _merged(word: str, value: str) -> dict[str, str]:
    return {"schedule": "mgwfbp" if _whole(word, value) else ALONE}


def _bytescheduler(word: str, value: str) -> dict[str, str]:
    return {"schedule": "priority"} if _whole(word, value) else {}


def _servers(word: str, value: str) -> dict[str, str]:
    servers = _whole(word, value)
    return {"exchange": f"ps(servers={servers}, colocated=false)"} if servers else {}


WORDS: dict[str, Callable[[str, str], dict[str, str]]] = {
    "dnn": _plain("model"),
    "bs": _plain("batch_size"),
    "nworkers": _plain("workers"),
    "senlen": _plain("sequence_length"),
    "rdma": lambda word, value: {},
    "debug": lambda word, value: {},
    "compressor": lambda word, value: {"compressor": COMPRESSORS.get(value, value)},
    "threshold": _threshold,
    "mgwfbp": _merged,
    "bytescheduler": _bytescheduler,
    "nservers": _servers,
}
