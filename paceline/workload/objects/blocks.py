"""Blocks of objects in memory: every block of 8 MiB is read once, ahead of its use, and dropped after its use.

    object    | block 0 | block 1 | ... |           one request each
    record              [---]                       `read` waits for its block; `expect` only starts the request

A block is dropped when all of its bytes were read. If more than `budget` bytes wait for their use, the least recently
used block is dropped and read again later. Such repeated reads are counted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from paceline.workload.objects.address import Item
from paceline.workload.objects.bucket import Bucket

BLOCK = 8 << 20
BUDGET = 1 << 30
AT_ONCE = 4  # requests

_Key = tuple[str, int]


@dataclass(eq=False)
class _Block:
    item: Item
    start: int
    stop: int
    data: memoryview | None = None
    problem: BaseException | None = None
    used: set[int] = field(default_factory=set)
    left: int = 0

    @property
    def done(self) -> bool:
        return self.data is not None or self.problem is not None


class Blocks:
    """A cache of blocks with read-ahead. With `keep`, a block is dropped only if there is no room."""

    def __init__(self, bucket: Bucket, budget: int = BUDGET, *, keep: bool = False) -> None:
        self.bucket, self._budget, self._keep = bucket, budget, keep
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()
        self._dropped: set[_Key] = set()
        self._pending: deque[_Block] = deque()
        self._changed = threading.Condition()
        self._threads = 0

    def read(self, item: Item, start: int, count: int) -> bytes | memoryview:
        """Return `count` bytes. Waits until they have been read."""
        parts = []
        for number in range(start // BLOCK, (start + max(count, 1) - 1) // BLOCK + 1):
            low, high = max(start, number * BLOCK), min(start + count, (number + 1) * BLOCK)
            parts.append(self._part(item, number, low, high))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, item: Item, start: int, count: int) -> None:
        """Start to read bytes that are needed soon, if there is room."""
        with self._changed:
            for number in range(start // BLOCK, (start + max(count, 1) - 1) // BLOCK + 1):
                self._ahead(item, number)

    def close(self) -> None:
        """Drop requests that have not started, and wait for those under way."""
        with self._changed:
            for block in self._pending:
                self._blocks.pop((block.item.key, block.start // BLOCK), None)
            self._pending.clear()
            while self._threads:
                self._changed.wait()

    def _part(self, item: Item, number: int, low: int, high: int) -> memoryview:
        key = item.key, number
        with self._changed:
            block = self._blocks.get(key)
            if block is None:
                self._make_room(BLOCK, needed=True)
                block = self._start(item, number, first=True)
            elif block in self._pending:
                self._pending.remove(block)
                self._pending.appendleft(block)
            self._blocks.move_to_end(key)
            if not block.used and (number + 1) * BLOCK < item.size:
                self._ahead(item, number + 1)
            while not block.done:
                self._changed.wait()
            if block.problem is not None:
                self._blocks.pop(key, None)
                raise block.problem
            assert block.data is not None
            if low not in block.used:
                block.used.add(low)
                block.left -= high - low
                if block.left <= 0 and not self._keep:
                    self._blocks.pop(key, None)
            return block.data[low - block.start : high - block.start]

    def _ahead(self, item: Item, number: int) -> None:
        if (item.key, number) not in self._blocks and self._make_room(BLOCK, needed=False):
            self._start(item, number, first=False)

    def _start(self, item: Item, number: int, *, first: bool) -> _Block:
        start = number * BLOCK
        block = _Block(item, start, min(item.size, start + BLOCK))
        block.left = block.stop - start
        if (item.key, number) in self._dropped:
            self.bucket.counts.again += 1
        self._blocks[item.key, number] = block
        self._pending.appendleft(block) if first else self._pending.append(block)
        if self._threads < AT_ONCE:
            self._threads += 1
            threading.Thread(target=self._work, name="paceline blocks", daemon=True).start()
        return block

    def _make_room(self, nbytes: int, *, needed: bool) -> bool:
        """Drop blocks until there is room. Drop a block that is still needed only if the new block is needed now."""
        total = sum(block.stop - block.start for block in self._blocks.values())
        for key, block in list(self._blocks.items()):
            if total + nbytes <= self._budget:
                return True
            if block.done and (needed or (self._keep and block.used)):
                del self._blocks[key]
                self._dropped.add(key)
                total -= block.stop - block.start
        return needed or total + nbytes <= self._budget

    def _work(self) -> None:
        """Read pending blocks until none is left. Then the thread ends."""
        while True:
            with self._changed:
                if not self._pending:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                block = self._pending.popleft()
            try:
                data, problem = self.bucket.read(block.item, block.start, block.stop), None
            except BaseException as failure:  # raised when the block is used
                data, problem = None, failure
            with self._changed:
                block.data, block.problem = data, problem
                self._changed.notify_all()


class ObjectStream:
    """An object as a stream to read from front to back: seek and read."""

    def __init__(self, bucket: Bucket, item: Item) -> None:
        self._blocks, self._item, self._at = Blocks(bucket, 4 * BLOCK, keep=True), item, 0

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, count: int) -> bytes:
        count = min(count, self._item.size - self._at)
        if count <= 0:
            return b""
        data = bytes(self._blocks.read(self._item, self._at, count))
        self._at += count
        return data

    def close(self) -> None:
        self._blocks.close()
