"""Remove secrets from texts before they are written, because records are made to be shared.

    https://ana:hunter2@host/x         ->  https://***@host/x
    ...?token=abc&part=1               ->  ...?token=***&part=1
    STRIPE_KEY=abc                     ->  STRIPE_KEY=***
    python t.py --password 'a b' -v    ->  python t.py --password *** -v
    ["t.py", "--password", "abc"]      ->  ["t.py", "--password", "***"]
    {"store": {"api_key": [1, 2]}}     ->  {"store": {"api_key": "***"}}
    the value of API_TOKEN, in any text        ->  ***

Secrets are recognized by names and formats only, so some can be missed; the whole environment is never written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
SHORTEST = 6  # characters; shorter values are common words like "yes"

# Words that mark a name as that of a secret. PWD in capitals is a directory, as is a value that starts with a slash.
_WORD = (
    r"(?:secret|token(?!iz|s?[ _\-]per(?![a-z]))|passw(?:or)?d|passphrase|(?:api|access|private|account)[_\-]?key"
    r"|credential|signature|authorization|connection[_\-]?string|(?<=--)pass(?![\w\-])"
    r"|(?<=[_\-])key(?:[_\-]?(?:id|\d+))?(?![\w\-])|(?<=[_\-])pwd(?![\w\-])|(?-i:(?<=[A-Z0-9]_)PASS)(?![\w\-])"
    r"|(?:db|user|sql|root|admin|smtp|redis)[_\-]?pass(?![a-z])"
    r"|(?<![\w\-])(?-i:pwd|Pwd)(?![\w\-])(?![\"']?\s*[=:]\s*[\"']?[/~]))"
)
# Names that look like secrets but hold a path, a choice or a count.
_HARMLESS = (
    r"(?:[\w\-]*[_\-](?:file|path|dir|url|type|parallelism)"
    r"|(?:[\w\-]*[_\-])?(?:sort|primary|foreign|public|partition|row|cache|object)[_\-]key"
    r"|[\w\-]*token[_\-](?:ids?|types?[\w\-]*|count|length|embed[\w\-]*)"
    r"|(?:[\w\-]*[_\-])?(?:max|min|num|n|pad|bos|eos|unk|sep|cls|mask)[_\-](?:\w+[_\-])?tokens?)"
)
_COUNT = r"[\w\-]*tokens[\"']?[\s=:]+[\"']?\d[\d.,_]*(?!\w)"
_NAME = rf"(?<![\w\-])(?!{_HARMLESS}(?![\w\-])|{_COUNT})[\w\-]*{_WORD}[\w\-]*"
_FLAG = rf"(?=-){_NAME}"
_ANOTHER_FLAG = r"--?(?:[A-Za-z][\w\-]*)?(?:[=\s\"',]|$)"
_QUOTED = r"'[^'\n]*'(?:\"'\"'[^'\n]*')*|\"(?:[^\"\\\n]|\\.)*\""  # 'it'"'"'s' is how a shell writes it's
_SHELL_WORD = rf"(?:{_QUOTED}|[\"']?[^\s\"']+(?:[\"'](?=\w)[^\s\"']+)*(?<!,))"

_NAMED = re.compile(_NAME, re.I)
_WHOLE_FLAG = re.compile(_FLAG, re.I)
_NO_VALUE = re.compile(_ANOTHER_FLAG)
_COUNTED = re.compile(r"tokens", re.I)
_NUMBER = re.compile(r"\d[\d.,_]*")
_SET = re.compile(rf"((?:{_FLAG}|(?-i:(?=[A-Z0-9_]+=)){_NAME})=).+", re.I | re.S)


def _keep_quotes(match: re.Match[str]) -> str:
    value = match[2]
    sign = value[0] if value[0] in "\"'" else ""
    return f"{match[1]}{sign}{HIDDEN}{sign if value.endswith(sign) and len(value) > 1 else ''}"


_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # user:password@ up to the last @ before the next slash; a password with a slash follows no port
    (re.compile(r"(?<=://)[^\s/'\"]+@"), f"{HIDDEN}@"),
    (re.compile(r"(?<=://)[^\s/@:'\"\[]*:(?!\d{1,5}[/?#])[^\s'\"]*@"), f"{HIDDEN}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), HIDDEN),
    (re.compile(r"(\bauthorization[\"']?\s*[=:]\s*[\"']?)[^\s\"'][^\"'\n]*", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"\b((?:bearer|basic)\s+)[\w\-.~+/=]{6,}", re.I), rf"\1{HIDDEN}"),
    # words of a command: '--token=a b', "--token=a b", --token=a;b, --token abc, '--token', 'abc'
    (re.compile(rf"'({_NAME}=)[^'\n]*(?:'\"'\"'[^'\n]*)*'", re.I), rf"'\1{HIDDEN}'"),
    (re.compile(rf"\"({_NAME}=)(?:[^\"\\\n]|\\.)*\"", re.I), rf'"\1{HIDDEN}"'),
    (re.compile(rf"({_FLAG}=){_SHELL_WORD}", re.I), rf"\1{HIDDEN}"),
    (re.compile(rf"({_FLAG}\s+)(?!{_ANOTHER_FLAG}|[=:]){_SHELL_WORD}", re.I), rf"\1{HIDDEN}"),
    (re.compile(rf"([\"']{_FLAG}[\"']\s*,\s*)(?![\"']{_ANOTHER_FLAG})({_QUOTED})", re.I), _keep_quotes),
    (re.compile(rf"((?<![?&])(?-i:(?=[A-Z0-9_]+=)){_NAME}=)({_QUOTED}|[\"']?[^\s\"')\]}}]+)", re.I), _keep_quotes),
    (re.compile(rf"({_NAME}[\"']?\s*[=:]\s*)({_QUOTED}|[\"']?[^\s&;,\"')\]}}]+)", re.I), _keep_quotes),
    (re.compile(r"([?&](?:sig|key|auth)=)[^\s&\"']+", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abpr]-)[\w\-]{8,}"), HIDDEN),
)


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of environment variables that are named like secrets, longest first."""
    values = {value for name, value in environ.items() if _NAMED.search(name) and len(value) >= SHORTEST}
    written = {quote(value, safe="") for value in values} | {value.replace("'", "'\"'\"'") for value in values}
    return tuple(sorted(values | written, key=len, reverse=True))


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Return the text with `secrets`, and everything that looks like a secret, replaced by ***."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def redacted(value: Any, secrets: Sequence[str] = (), *, names: bool = True) -> Any:
    """Redact every text inside a JSON value; with `names`, the names of fields as well."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {
            redact(str(key), secrets) if names else str(key): _of_field(str(key), part, secrets, names)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return list(_of_list(value, secrets, names))
    return value


def _of_field(name: str, value: Any, secrets: Sequence[str], names: bool) -> Any:
    """Redact a field whose name looks like a secret, except booleans, empty values and counts of tokens."""
    has_content = value is not None and not isinstance(value, bool) and value not in ("", [], {})
    if not has_content or not _NAMED.search(name) or (_COUNTED.search(name) and _is_figures(value)):
        return redacted(value, secrets, names=names)
    return HIDDEN


def _is_figures(value: Any) -> bool:
    return all(isinstance(part, (int, float)) for part in (value if isinstance(value, (list, tuple)) else [value]))


def _of_list(values: Sequence[Any], secrets: Sequence[str], names: bool) -> Iterator[Any]:
    """Redact the items of a list. After a flag that is named like a secret, the next item is hidden."""
    before: Any = None
    for value in values:
        if isinstance(before, str) and isinstance(value, (str, int, float)) and _is_value(before, str(value)):
            yield HIDDEN
        elif isinstance(value, str) and (match := _SET.fullmatch(value)):
            yield f"{match[1]}{HIDDEN}"
        else:
            yield redacted(value, secrets, names=names)
        before = value


def _is_value(flag: str, word: str) -> bool:
    """Return whether a word is the value of a flag that is named like a secret."""
    if not word or not _WHOLE_FLAG.fullmatch(flag) or _NO_VALUE.match(word):
        return False
    return not (_COUNTED.search(flag) and _NUMBER.fullmatch(word))
