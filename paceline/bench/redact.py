"""Secrets taken out of whatever is about to be written: a record is made to be shown to others.

    https://ana:hunter2@host/x      ->  https://***@host/x
    ...?token=abc&part=1            ->  ...?token=***&part=1
    AWS_SECRET_ACCESS_KEY=abc       ->  AWS_SECRET_ACCESS_KEY=***
    what a variable named like a secret holds  ->  ***

Only names and forms are known, so this cannot find every secret; the environment is never written as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
SHORTEST = 6  # characters; shorter values are words like "yes" that stand everywhere

_SECRET = (
    r"(?:secret|token|passw(?:or)?d|passphrase|api_?key|access_?key|private_?key|credential|signature|authorization)"
)
_NAMED = re.compile(_SECRET, re.I)
# Names of variables that sound like secrets and hold a place or a choice instead.
_HARMLESS = re.compile(r"(?:_file|_path|_dir|_url|_type|_parallelism|tokenizers\w*)$", re.I)
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<=://)[^\s/@'\"]+@"), f"{HIDDEN}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), HIDDEN),
    (re.compile(r"\b((?:bearer|basic)\s+)[\w\-.~+/=]{6,}", re.I), rf"\1{HIDDEN}"),
    (
        re.compile(rf"([\w\-]*{_SECRET}[\w\-]*[\"']?\s*[=:]\s*[\"']?)(?!\*\*\*)[^\s&;,\"')\]}}]+", re.I),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"([?&](?:sig|key|auth)=)[^\s&\"']+", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abpr]-)[\w\-]{8,}"), HIDDEN),
)


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What variables named like secrets hold, longest first."""
    found = {
        value
        for name, value in environ.items()
        if _NAMED.search(name) and not _HARMLESS.search(name) and len(value) >= SHORTEST
    }
    return tuple(sorted(found | {quote(value, safe="") for value in found}, key=len, reverse=True))


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """The text without what looks like a secret, and without the given ones."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def redacted(value: Any, secrets: Sequence[str] = ()) -> Any:
    """The same of every text inside a value as JSON has it, names of fields included."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact(str(key), secrets): _of_field(str(key), part, secrets) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(part, secrets) for part in value]
    return value


def _of_field(name: str, value: Any, secrets: Sequence[str]) -> Any:
    """A text in a field that is named like a secret is one."""
    if isinstance(value, str) and value and _NAMED.search(name) and not _HARMLESS.search(name):
        return HIDDEN
    return redacted(value, secrets)
