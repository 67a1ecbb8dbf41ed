"""The words of the published individual mode: dnn=resnet50 bs=64 nworkers=4 threshold=8388608.

dnn bs nworkers senlen     model, batch size, workers, sequence length
compressor                 none, topk, gtopk, signum, ...: with feedback where the published code had it
threshold                  elements (not megabytes) that are fused into one message; 0 is every tensor by itself
mgwfbp=1 bytescheduler=1   the schedule of that name
nservers                   dedicated parameter servers
rdma                       noted as not applicable
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.errors import UnknownName, WrongCommand

COMPRESSORS = {
    "topk": "feedback(topk(ratio=0.01))",
    "eftopk": "feedback(topk(ratio=0.01))",
    "gtopk": "feedback(gtopk(ratio=0.01))",
    "signum": "sign(momentum=0.9)",
    "efsignum": "feedback(efsign)",
}
BYTES_PER_ELEMENT = 4


def settings_of(words: Sequence[str], note: Callable[[str], None]) -> dict[str, str]:
    """What `key=value` words stand for, as settings of a run."""
    found: dict[str, str] = {}
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
        found.update(WORDS[key](word, value))
    return found


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
