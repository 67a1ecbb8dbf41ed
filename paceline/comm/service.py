"""Workers and servers on one comm: before workers do something together, the servers are told.

    workers 0 .. n-1    training: allocate, sum_by, ...            rank 0 tells: Order(word, numbers)
    servers n .. n+k-1  hear an order, take part in it, hear the next

A server knows nothing of models: it hears how long a message is and which lane it belongs to, and places
its pieces as the workers do (exchanges/placement.py). Orders are a few whole numbers; texts are JSON.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.comm.lockstep import Combine
from paceline.comm.sums import add_up
from paceline.errors import WrongCommand
from paceline.transport import Comm, Work
from paceline.types import Piece

WORDS = ("end", "allocate", "allocate_result", "lane", "sum", "text", "begin", "update", "crews", "ready")
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
NUMBERS = 8  # of an order: as many as the longest has
IN_FLIGHT = 16  # orders that need not have been heard yet
PATIENCE = 7 * 86400.0  # seconds: servers wait for workers that evaluate or save, workers at the end for the last
LONGEST_TEXT = 1 << 24  # bytes; a server takes no more than this for a text


class Order(NamedTuple):
    """A word and its numbers. What the numbers mean depends on the word:

    allocate, allocate_result   numel, dtype, numbers of vectors before it that are gone
    lane                        lane, whether workers hold pieces too
    sum, begin, update          lane, chunk, numel, dtype, source, start in it, result, start in it
    text                        bytes
    """

    word: str
    numbers: tuple[int, ...]


class Service:
    """The workers' side. Looks like a comm to whoever allocates memory for messages."""

    def __init__(self, comm: Comm, servers: int, crews: Callable[[], Sequence[Comm]] | None = None) -> None:
        self.comm, self.servers, self.crews = comm, servers, crews
        self.rank, self.size = comm.rank, comm.size - servers
        self.shares_results = comm.shares_results
        self._given: dict[str, list[Tensor]] = {"allocate": [], "allocate_result": []}
        self._gone: dict[str, list[int]] = {"allocate": [], "allocate_result": []}  # servers have not heard of it
        self._told: deque[Work] = deque()
        self._lanes = 0
        self._crew: Service | None = None
        self.sent = [0] * servers  # bytes pushed to each server
        self._control = 0  # bytes of orders, which are not counted as traffic

    def tell(self, word: str, *numbers: int) -> None:
        """Without waiting: a server may still be busy with the order before."""
        if self.servers:
            filled = (WORDS.index(word), *numbers, *(-1,) * (NUMBERS - len(numbers)))
            self._told.append(self.comm.broadcast(torch.tensor(filled), 0, "an order"))
            self._control += 8 * len(filled)
            if len(self._told) > IN_FLIGHT:
                self._told.popleft().wait()

    def tell_text(self, values: Any) -> None:
        """Anything that JSON can carry."""
        text = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
        self.tell("text", text.numel())
        if self.servers:
            self.comm.broadcast(text, 0, "a text").wait()
            self._control += text.nbytes

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._allocate("allocate", numel, dtype)

    def allocate_result(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._allocate("allocate_result", numel, dtype)

    def _allocate(self, word: str, numel: int, dtype: torch.dtype) -> Tensor:
        room = NUMBERS - 2
        gone, self._gone[word] = self._gone[word][:room], self._gone[word][room:]
        self.tell(word, numel, DTYPES.index(dtype), *gone)
        vector: Tensor = getattr(self.comm, word)(numel, dtype, self.size)
        self._given[word].append(vector)
        return vector

    def release(self, vector: Tensor) -> None:
        """Forget a vector; servers hear of it with the next one, which all workers allocate together."""
        for word, given in self._given.items():
            for number, known in enumerate(given):
                if known is vector:
                    given[number] = vector.new_empty(0)  # others keep their numbers
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
        """The sum of all workers' src, or what servers make of it under another word."""
        places = (*self._find("allocate", src), *self._find("allocate_result", dst))
        self.tell(word, lane, chunk, src.numel(), DTYPES.index(src.dtype), *places)
        for owner, start, stop in pieces:
            if owner >= self.size:
                self.sent[owner - self.size] += (stop - start) * src.itemsize
        return self.comm.sum_by(src, dst, pieces, self.size, key)

    def number_of(self, vector: Tensor) -> int:
        """Under which number servers know a vector that was allocated here."""
        return self._find("allocate", vector)[0]

    def _find(self, word: str, part: Tensor) -> tuple[int, int]:
        """Which allocation a range lies in, and where; (-1, 0) if in none."""
        for number, vector in enumerate(self._given[word]):
            first = part.data_ptr() - vector.data_ptr()
            if part.numel() and 0 <= first < vector.nbytes and vector.dtype == part.dtype:
                return number, first // part.itemsize
        return -1, 0

    def join_crew(self) -> Service:
        """The servers for this worker alone, so that nobody has to keep step. Collective."""
        if self._crew is not None:
            raise WrongCommand(
                "a second wrap() with rule server that does not keep step",
                why="servers look after one model at a time then",
                remedy="rule server with staleness 0",
            )
        self.tell("crews")
        self._settle()  # nothing else will be done here for a long time that would carry it along
        assert self.crews is not None, "a job with servers can make crews"
        self._crew = Service(self.crews()[0], self.servers)
        self._crew.comm.get_ready()
        self._crew.sent = self.sent
        return self._crew

    def _settle(self) -> None:
        """Until every order has been heard."""
        while self._told:
            self._told.popleft().wait()

    def received(self) -> tuple[int, ...]:
        """Bytes from each worker and server."""
        first, *rest = self.comm.received()
        own = [first if self.rank == 0 else first - self._control, *rest]
        if self._crew is not None and self._crew.comm.shares_results:
            own[self.size :] = map(add, own[self.size :], self._crew.comm.received()[1:])
        return tuple(own)

    def progress(self) -> None:
        self.comm.progress()

    def close(self, failure: str = "", meet: Callable[[float], None] | None = None) -> None:
        """Let the servers go; after a failure they see for themselves.

        Workers that need not keep step come here at any time, so they meet first, however long that takes.
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
    """One server's side of one comm: hears orders and takes part."""

    def __init__(self, comm: Comm, givers: int, crews: Callable[[], Sequence[Comm]] | None = None) -> None:
        self.comm, self.givers, self.crews = comm, givers, crews
        self._given: dict[str, list[Tensor]] = {"allocate": [], "allocate_result": []}
        self._ear = torch.zeros(NUMBERS + 1, dtype=torch.int64)
        self._work: Work | None = None

    def hear(self) -> Order:
        """Wait for the next order, however long the workers take."""
        self._listen().wait(PATIENCE)
        return self._heard()

    def overhear(self) -> Order | None:
        """The next order if it is there."""
        return self._heard() if self._listen().done() else None

    def _listen(self) -> Work:
        if self._work is None:
            self._work = self.comm.broadcast(self._ear, 0, "an order")
        return self._work

    def _heard(self) -> Order:
        self._work = None
        word, *numbers = self._ear.tolist()
        return Order(WORDS[word], tuple(numbers))

    def allocate(self, order: Order) -> None:
        numel, dtype, *gone = order.numbers
        given = self._given[order.word]
        for number in gone:
            if number >= 0:
                self.comm.release(given[number])
                given[number] = given[number].new_empty(0)
        given.append(getattr(self.comm, order.word)(numel, DTYPES[dtype], self.givers))

    def text(self, order: Order) -> Any:
        """The text that follows; a length that makes no sense is refused before memory is taken."""
        nbytes = order.numbers[0]
        if not 0 <= nbytes <= LONGEST_TEXT:
            raise ValueError(f"a text of {nbytes} bytes")
        text = torch.zeros(nbytes, dtype=torch.uint8)
        self.comm.broadcast(text, 0, "a text").wait()
        return json.loads(bytes(text.tolist()))

    def take_part(self, order: Order, pieces: Sequence[Piece], combine: Combine = add_up) -> None:
        """Add this server's pieces of one message, or do with them what `combine` does."""
        _, _, numel, dtype, source, at, result, into = order.numbers[:8]
        src = self._range("allocate", source, at, numel, DTYPES[dtype])
        dst = self._range("allocate_result", result, into, numel, DTYPES[dtype])
        self.comm.sum_by(src, dst, pieces, self.givers, order.word, combine).wait(PATIENCE)

    def lost(self) -> str | None:
        """Why the first worker will not give orders any more, if it will not."""
        return self.comm.excuse(0)

    def close(self, failure: str = "") -> None:
        self.comm.close(failure)

    def _range(self, word: str, number: int, start: int, numel: int, dtype: torch.dtype) -> Tensor:
        if number < 0:
            return torch.zeros(numel, dtype=dtype)
        return self._given[word][number][start : start + numel]
