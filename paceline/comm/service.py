"""Orders from workers to parameter servers. Rank 0 announces each collective before the workers start it.

    workers 0 .. n-1    training: allocate, sum_by, ...            rank 0 broadcasts Order(word, numbers)
    servers n .. n+k-1  receive an order, take part in that collective, receive the next

A server knows nothing about models. An order names the length of a message and its lane. From these the server
computes which pieces it owns, as the workers do (strategy/exchanges/_placement.py). Orders are a few integers; texts
are JSON.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.comm.shm.lockstep import Combine
from paceline.comm.sums import add_up
from paceline.comm.transport import Comm, Work
from paceline.errors import WrongCommand
from paceline.types import Piece

WORDS = ("end", "allocate", "allocate_result", "lane", "sum", "text", "begin", "update", "crews", "ready")
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
NUMBERS = 8  # integers per order; the longest order has this many
IN_FLIGHT = 16  # orders that rank 0 may send before the servers have received the first of them
PATIENCE = 7 * 86400.0  # seconds; servers wait while workers evaluate or save, and workers for the slowest at the end
LONGEST_TEXT = 1 << 24  # bytes; a server refuses to allocate more for a text


class ServerOrder(NamedTuple):
    """A word and its numbers. The meaning of the numbers depends on the word:

    allocate, allocate_result   numel, dtype, indices of earlier vectors that were released
    lane                        lane, whether workers hold pieces too
    sum, begin, update          lane, chunk, numel, dtype, source, start in it, result, start in it
    text                        bytes
    """

    word: str
    numbers: tuple[int, ...]


class Service:
    """The workers' side. Messages are allocated through it, so it has the allocating methods of a comm."""

    def __init__(self, comm: Comm, servers: int, crews: Callable[[], Sequence[Comm]] | None = None) -> None:
        self.comm, self.servers, self.crews = comm, servers, crews
        self.rank, self.size = comm.rank, comm.size - servers
        self.shares_results = comm.shares_results
        self._vectors: dict[str, list[Tensor]] = {"allocate": [], "allocate_result": []}
        self._gone: dict[str, list[int]] = {"allocate": [], "allocate_result": []}  # not yet announced to servers
        self._unheard: deque[Work] = deque()
        self._lanes = 0
        self._crew: Service | None = None
        self.sent = [0] * servers  # bytes pushed to each server
        self._control = 0  # bytes of orders, which are not counted as traffic

    def tell(self, word: str, *numbers: int) -> None:
        """Send an order without waiting, because a server may still be busy with the previous one."""
        if self.servers:
            filled = (WORDS.index(word), *numbers, *(-1,) * (NUMBERS - len(numbers)))
            self._unheard.append(self.comm.broadcast(torch.tensor(filled), 0, "an order"))
            self._control += 8 * len(filled)
            if len(self._unheard) > IN_FLIGHT:
                self._unheard.popleft().wait()

    def tell_text(self, values: Any) -> None:
        """Send a value that JSON can represent."""
        text = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
        self.tell("text", text.numel())
        if self.servers:
            self.comm.broadcast(text, 0, "a text").wait()
            self._control += text.nbytes

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._allocate("allocate", numel, dtype)

    def allocate_result(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._allocate("allocate_result", numel, dtype)

    def private_view(self, result: Tensor) -> Any:
        return self.comm.private_view(result)

    def _allocate(self, word: str, numel: int, dtype: torch.dtype) -> Tensor:
        room = NUMBERS - 2
        gone, self._gone[word] = self._gone[word][:room], self._gone[word][room:]
        self.tell(word, numel, DTYPES.index(dtype), *gone)
        vector: Tensor = getattr(self.comm, word)(numel, dtype, self.size)
        self._vectors[word].append(vector)
        return vector

    def release(self, vector: Tensor) -> None:
        """Forget a vector. The order of the next allocation also announces to servers that it was released."""
        for word, vectors in self._vectors.items():
            for number, known in enumerate(vectors):
                if known is vector:
                    vectors[number] = vector.new_empty(0)  # a placeholder, so that later vectors keep their numbers
                    self._gone[word].append(number)
        self.comm.release(vector)

    def open_lane(self, colocated: bool) -> int:
        number, self._lanes = self._lanes, self._lanes + 1
        self.tell("lane", number, int(colocated))
        return number

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        *,
        word: str = "sum",
        lane: int,
        chunk: int,
        key: object = "",
    ) -> Work:
        """Start dst = the sum of all workers' src. With word `begin` or `update`, servers apply another function."""
        places = (*self._find("allocate", src), *self._find("allocate_result", dst))
        self.tell(word, lane, chunk, src.numel(), DTYPES.index(src.dtype), *places)
        for owner, start, stop in pieces:
            if owner >= self.size:
                self.sent[owner - self.size] += (stop - start) * src.itemsize
        return self.comm.sum_by(src, dst, pieces, self.size, key)

    def number_of(self, vector: Tensor) -> int:
        """Return the number that servers use for a vector that was allocated here."""
        return self._find("allocate", vector)[0]

    def _find(self, word: str, part: Tensor) -> tuple[int, int]:
        """Return the number of the allocation that contains a range, and the range's offset in it; else (-1, 0)."""
        for number, vector in enumerate(self._vectors[word]):
            first = part.data_ptr() - vector.data_ptr()
            if part.numel() and 0 <= first < vector.nbytes and vector.dtype == part.dtype:
                return number, first // part.itemsize
        return -1, 0

    def join_crew(self) -> Service:
        """Return a service between this worker and all servers. It does not wait for other workers. Collective."""
        if self._crew is not None:
            raise WrongCommand(
                "a second wrap() with rule server that does not keep step",
                why="without keeping step, servers hold one model only",
                remedy="rule server with staleness 0",
            )
        self.tell("crews")
        self._settle()  # this comm may stay idle for long, and then nothing else would advance the order
        assert self.crews is not None, "a job with servers can make crews"
        self._crew = Service(self.crews()[0], self.servers)
        self._crew.comm.get_ready()
        self._crew.sent = self.sent
        return self._crew

    def _settle(self) -> None:
        """Wait until the servers have received every order."""
        while self._unheard:
            self._unheard.popleft().wait()

    def received(self) -> tuple[int, ...]:
        """Return the bytes received from each worker and server."""
        first, *rest = self.comm.received()
        own = [first if self.rank == 0 else first - self._control, *rest]
        if self._crew is not None and self._crew.comm.shares_results:
            own[self.size :] = map(add, own[self.size :], self._crew.comm.received()[1:])
        return tuple(own)

    def progress(self) -> None:
        self.comm.progress()

    def close(self, failure: str = "", meet: Callable[[float], None] | None = None) -> None:
        """End the servers. After a failure nothing is sent, because the servers notice the failure themselves.

        Workers that do not keep step arrive at different times, so with `meet` they first wait for each other.
        """
        if self._crew is not None:
            self._crew.close(failure)
        if not failure:
            if meet is not None:
                meet(PATIENCE)
            self.tell("end")
            self._settle()
        self.comm.close(failure)


class Attendant:
    """The server's side. It receives orders over one comm and takes part in the collectives that they announce."""

    def __init__(self, comm: Comm, givers: int, crews: Callable[[], Sequence[Comm]] | None = None) -> None:
        self.comm, self.givers, self.crews = comm, givers, crews
        self._vectors: dict[str, list[Tensor]] = {"allocate": [], "allocate_result": []}
        self._ear = torch.zeros(NUMBERS + 1, dtype=torch.int64)
        self._work: Work | None = None

    def hear(self) -> ServerOrder:
        """Wait for the next order, for up to a week, and return it."""
        self._listen().wait(PATIENCE)
        return self._heard()

    def overhear(self) -> ServerOrder | None:
        """Return the next order if it has arrived, else None."""
        return self._heard() if self._listen().done() else None

    def _listen(self) -> Work:
        if self._work is None:
            self._work = self.comm.broadcast(self._ear, 0, "an order")
        return self._work

    def _heard(self) -> ServerOrder:
        self._work = None
        word, *numbers = self._ear.tolist()
        return ServerOrder(WORDS[word], tuple(numbers))

    def allocate(self, order: ServerOrder) -> None:
        numel, dtype, *gone = order.numbers
        vectors = self._vectors[order.word]
        for number in gone:
            if number >= 0:
                self.comm.release(vectors[number])
                vectors[number] = vectors[number].new_empty(0)
        vectors.append(getattr(self.comm, order.word)(numel, DTYPES[dtype], self.givers))

    def text(self, order: ServerOrder) -> Any:
        """Receive the text of an order and parse it as JSON. Raises before allocating more than LONGEST_TEXT."""
        nbytes = order.numbers[0]
        if not 0 <= nbytes <= LONGEST_TEXT:
            raise ValueError(f"a text of {nbytes} bytes")
        text = torch.zeros(nbytes, dtype=torch.uint8)
        self.comm.broadcast(text, 0, "a text").wait()
        return json.loads(bytes(text.tolist()))

    def take_part(self, order: ServerOrder, pieces: Sequence[Piece], combine: Combine = add_up) -> None:
        """Combine this server's pieces of one message; `combine` adds them by default."""
        _, _, numel, dtype, source, at, result, into = order.numbers[:8]
        src = self._range("allocate", source, at, numel, DTYPES[dtype])
        dst = self._range("allocate_result", result, into, numel, DTYPES[dtype])
        self.comm.sum_by(src, dst, pieces, self.givers, order.word, combine).wait(PATIENCE)

    def lost(self) -> str | None:
        """Return why the first worker can send no more orders, or None."""
        return self.comm.why_lost(0)

    def close(self, failure: str = "") -> None:
        self.comm.close(failure)

    def _range(self, word: str, number: int, start: int, numel: int, dtype: torch.dtype) -> Tensor:
        if number < 0:
            return torch.zeros(numel, dtype=dtype)
        return self._vectors[word][number][start : start + numel]
