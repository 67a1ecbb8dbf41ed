"""A bucket: listings, ranges and writes. Failed requests are retried here, and retries are counted.

503, 429, time-outs, resets, short bodies    retry after a pause that doubles up to 2 s, with jitter
403, no such bucket, no such key             fail at once, and name the key
content differs from the listing             fail at once (compares ETags, or time and size without ETags)
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.errors import StoreFailed, WrongCommand
from paceline.workload.objects.access import endpoint_of, open_store
from paceline.workload.objects.address import SCHEME, Address, Item

if TYPE_CHECKING:
    from obstore import GetOptions

ATTEMPTS, FIRST_ATTEMPTS = 12, 4  # the second limit applies until the server was reached for the first time
PAUSE, LONGEST = 0.05, 2.0  # seconds
PAGE = 1000
_STATUS, _CODE = re.compile(r"status code: (\d{3})"), re.compile(r"<Code>(\w{1,60})</Code>")
_BUSY = {408, 425, 429, 500, 502, 503, 504}
_WRONG_KEYS = {"SignatureDoesNotMatch", "InvalidAccessKeyId"}
Result = TypeVar("Result")


class Again(Exception):
    """A request failed, but may succeed if it is repeated. The text names the reason in the counts."""


@dataclass
class Counts:
    """The numbers of requests, retries and bytes so far."""

    requests: int = 0
    retries: int = 0
    nbytes: int = 0
    again: int = 0  # blocks that were read a second time, because memory was short
    reasons: Counter[str] = field(default_factory=Counter)


class Bucket:
    """The objects below an address. Safe to use from several threads."""

    def __init__(
        self,
        address: Address,
        endpoint: str = "",
        environ: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        environ = os.environ if environ is None else environ
        self.address, self.endpoint = address, endpoint_of(environ, endpoint)
        self.counts = Counts()
        self._store = open_store(address.bucket, environ, self.endpoint)
        self._sleep, self._dice, self._lock = sleep, random.Random(), threading.Lock()
        self._reached = False

    def listing(self) -> list[Item]:
        """Return every object below the address, page by page. After a failure it continues after the last key."""
        import obstore

        items: dict[str, Item] = {}
        last: str | None = None
        ordered = True

        def rest() -> None:
            nonlocal last, ordered
            behind = last if ordered else None
            pages = obstore.list(self._store, self.address.prefix or None, offset=behind, chunk_size=PAGE)
            for number, page in enumerate(pages):
                with self._lock:
                    self.counts.requests += bool(number)  # the attempt already counts the first page
                for meta in page:
                    key = meta["path"]
                    ordered = ordered and (last is None or key > last)
                    items[key] = Item(self.address.bucket, key, meta["size"], _tag(meta))
                    last = key

        self._attempt(str(self.address), rest, progress=lambda: len(items))
        return [items[key] for key in sorted(items)]

    def read(self, item: Item, start: int, stop: int) -> memoryview:
        """Return a range of an object. Raises if the object is no longer the one that was listed."""
        import obstore

        def once() -> memoryview:
            options: GetOptions = {"range": (start, stop)}
            if not item.tag.startswith("time:"):
                options["if_match"] = f'"{item.tag}"'
            answer = obstore.get(self._store, item.key, options=options)
            if _tag(answer.meta) != item.tag:
                raise _changed(item)
            data = memoryview(answer.bytes())
            if len(data) != stop - start:
                raise Again("short body")
            return data

        data = self._attempt(str(item), once)
        with self._lock:
            self.counts.nbytes += len(data)
        return data

    def write(self, key: str, data: bytes) -> str:
        """Write an object in one request, whether it exists or not. Return its new tag; empty if it is not known."""
        import obstore

        def once() -> str:
            return (obstore.put(self._store, key, data, use_multipart=False)["e_tag"] or "").strip('"')

        return self._attempt(f"{SCHEME}{self.address.bucket}/{key}", once)

    def _attempt(self, what: str, action: Callable[[], Result], progress: Callable[[], int] = lambda: 0) -> Result:
        """Repeat an action until it succeeds. Progress resets the count of attempts."""
        failures, before = 0, progress()
        while True:
            with self._lock:
                self.counts.requests += 1
            try:
                result = action()
            except (StoreFailed, WrongCommand):
                raise
            except Exception as problem:
                reason = self._reason(what, problem)
                failures = failures + 1 if progress() == before else 1
                before = progress()
                if failures >= (FIRST_ATTEMPTS if reason == "no connection" and not self._reached else ATTEMPTS):
                    raise self._failure_of(what, reason, failures) from None
                with self._lock:
                    self.counts.retries += 1
                    self.counts.reasons[reason] += 1
                self._sleep(min(LONGEST, PAUSE * 2 ** (failures - 1)) * self._dice.uniform(0.5, 1.0))
            else:
                self._reached = True
                return result

    def _reason(self, what: str, problem: Exception) -> str:
        """Return the reason for a retry, without any text of the server. Raises if a retry would not help."""
        if isinstance(problem, Again):
            return str(problem)
        text = str(problem)
        match, code = _STATUS.search(text), _CODE.search(text)
        status, name = int(match[1]) if match else 0, code[1] if code else ""
        self._reached = self._reached or bool(status)
        if status in _BUSY or name == "SlowDown":
            return str(status)
        if status:
            raise self._refusal(what, status, name) from None
        if "non-partial response" in text:
            raise StoreFailed(
                what, why=f"{self._where} ignores ranges", remedy="a server that answers with 206"
            ) from None
        if "kind: Connect" in text:
            return "no connection"
        return "time-out" if "timed out" in text or "TimedOut" in text else "broken connection"

    def _refusal(self, what: str, status: int, name: str) -> Exception:
        word = f"{status} {name}".strip()
        if status in (401, 403):
            remedy = (
                "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if name in _WRONG_KEYS else "the right to read it"
            )
            return StoreFailed(what, why=f"{self._where} refuses to give it ({word})", remedy=remedy)
        if status == 404 and name == "NoSuchBucket":
            return WrongCommand(
                what,
                why=f"{self._where} has no bucket {self.address.bucket}",
                remedy="look at its name, or the endpoint",
            )
        if status == 404:
            return StoreFailed(what, why=f"there is no such object ({word})", remedy="look at the key")
        if status in (412, 416):
            return _changed(what)
        if status in (301, 307):
            return StoreFailed(what, why=f"the bucket is in another region ({word})", remedy="AWS_REGION=...")
        return StoreFailed(what, why=f"{self._where} answers {word}")

    def _failure_of(self, what: str, reason: str, failures: int) -> StoreFailed:
        if reason == "no connection" and not self._reached:
            return StoreFailed(
                what, why=f"{self._where} cannot be reached", remedy="look at AWS_ENDPOINT_URL, and the network"
            )
        return StoreFailed(what, why=f"{failures} requests in a row failed, the last one with: {reason}")

    @property
    def _where(self) -> str:
        return self.endpoint or "Amazon S3"


def _tag(meta: Mapping[str, Any]) -> str:
    tag = (meta["e_tag"] or "").strip('"')
    return tag or f"time:{meta['last_modified']:%Y-%m-%dT%H:%M:%S} size:{meta['size']}"


def _changed(what: object) -> StoreFailed:
    return StoreFailed(
        f"{what}", why="its content changed while it was read", remedy="start again when nobody writes it"
    )
