"""Collectives over paceline's own sockets, for elastic jobs, and for CPU hosts on request.

Large messages travel around a ring in segments; small ones use patterns with fewer rounds (comm/patterns.py). Unlike
gloo, this comm can be aborted while a peer is frozen, checks a token and a generation, and names the rank that it
waited for. Half-precision sums above 64 KiB are rounded at every hop of the ring, as with gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.comm import patterns
from paceline.comm.notes import call_text, tensor_text
from paceline.comm.rendezvous import TextStore
from paceline.comm.shm.lockstep import Combine
from paceline.comm.shm.queue import DEADLINE
from paceline.comm.sums import add_up, mix_into
from paceline.comm.tcp import program as plans
from paceline.comm.tcp.board import TcpBoard
from paceline.comm.tcp.mesh import Mesh, checksum, mesh_number
from paceline.comm.tcp.operation import Operation, TcpWork, add_parts
from paceline.comm.tcp.settings import PLAIN, TcpSettings
from paceline.comm.tcp.station import Listener, Place, Station
from paceline.comm.tcp.windows import TcpBuffers, WindowPost
from paceline.types import Flow, Mixing, Piece, spread


class TcpGroup:
    """The collectives of one mesh. A rank is a position among the members of the mesh."""

    shares_results = False
    names_ranks = True
    segment = plans.SEGMENT
    service: Any = None  # set in a job with servers, see comm/service.py
    store: Any = None

    def __init__(self, mesh: Mesh, nodes: tuple[int, ...], counts: list[int]) -> None:
        self.mesh, self._counts, self.placement = mesh, counts, nodes
        self.rank, self.size, self.members = mesh.rank, mesh.size, mesh.members
        self.deadline, self.engines = mesh.station.deadline, 0
        self.generation = mesh.station.generation
        self._splits = self._boards = 0
        self._windows: WindowPost | None = None

    # memory -----------------------------------------------------------------------------------------------

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return torch.zeros(numel, dtype=dtype)

    def allocate_result(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        return torch.zeros(numel, dtype=dtype)

    def release(self, vector: Tensor) -> None:
        """Do nothing: no other rank refers to the vector."""

    # collectives ------------------------------------------------------------------------------------------

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> TcpWork:
        flat, out = _dense(src), dst.view(-1)
        if self.size == 1:
            out.copy_(flat)
            return TcpWork(self.mesh, None)
        if flat.nbytes <= plans.SMALL:  # a ring sends every range before it writes there
            flat = _apart(flat, out)
        return self._run("all_sum", plans.sum_steps, flat, out, key)

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> TcpWork:
        """Start dst = this rank's range of the sum of every rank's src. spread(numel, size) gives the ranges."""
        flat, bounds = _dense(src), spread(src.numel(), self.size)
        mine = slice(bounds[self.rank], bounds[self.rank + 1])
        if self.size == 1:
            dst.view(-1).copy_(flat)
            return TcpWork(self.mesh, None)
        whole = torch.empty_like(flat)
        work = self._run("reduce_scatter", plans.scatter_steps, flat, whole, key)
        return work.then(lambda: dst.view(-1).copy_(whole[mine]))

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> TcpWork:
        rows = dst.view(-1)
        rows[self.rank * src.numel() : (self.rank + 1) * src.numel()].copy_(src.reshape(-1))
        return self._run("all_gather", plans.gather_steps, rows, rows, key, numel=src.numel(), like=src)

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> TcpWork:
        dense = tensor.contiguous()
        flat = dense.view(-1)
        work = self._run("broadcast", plans.broadcast_steps, flat, flat, key, root, note=f"{key}, from rank {root}")
        return work if dense is tensor else work.then(lambda: tensor.copy_(dense))

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> TcpWork:
        """Start dst = keep * src + the weighted src of the sources. Only the ranks of `mixing` wait for each other."""
        out = dst.view(-1)
        flat, weights = _apart(_dense(src), out), dict(mixing.sources)
        sources = tuple(peer for peer, _ in mixing.sources)
        if not sources:
            mix_into(out, flat, mixing.keep, [])

        def combine(into: Tensor, parts: Sequence[tuple[int, Tensor]], start: int) -> None:
            own = flat[start : start + into.numel()]
            mix_into(into, own, mixing.keep, [(part, weights[peer]) for peer, part in parts])

        copies = mixing.keep == 0 and list(weights.values()) == [1]  # a message is then received in place
        rest = sources, tuple(mixing.targets), not copies
        return self._run("mix", plans.mix_steps, flat, out, key, *rest, combine=combine, own=False)

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Combine = add_up,
    ) -> TcpWork:
        """Start dst = the sum of src over the ranks below `givers`. The owner of each piece adds it up.

        Ranks from `givers` on contribute no src; they only own pieces.
        """
        flat, out = _dense(src), dst.view(-1)
        own = self.rank < givers
        if givers == 1 and own:
            for owner, start, stop in pieces:
                if owner == self.rank:
                    combine(out[start:stop], [flat[start:stop]], start)

        def together(into: Tensor, parts: Sequence[tuple[int, Tensor]], start: int) -> None:
            combine(into, [part for _, part in parts], start)

        rest = tuple(pieces), givers
        return self._run("sum_by", plans.owner_steps, flat, out, key, *rest, note="", combine=together, own=own)

    def barrier(self, deadline: float | None = None) -> None:
        token = torch.zeros(1, dtype=torch.uint8)
        self._run("barrier", plans.sum_steps, token, torch.empty_like(token), "", counted=False).wait(deadline)

    def _run(
        self,
        verb: str,
        steps: plans.Steps,
        src: Tensor,
        dst: Tensor,
        key: object,
        *rest: Any,
        note: object = None,
        numel: int | None = None,
        like: Tensor | None = None,
        combine: Any = add_parts,
        own: bool = True,
        counted: bool = True,
    ) -> TcpWork:
        self.mesh.station.home.check()
        if self.size == 1:
            return TcpWork(self.mesh, None)
        text = call_text(verb, tensor_text(src if like is None else like), key if note is None else note)
        program = plans.program(
            steps, self.rank, self.size, src.numel() if numel is None else numel, src.itemsize, *rest
        )
        call = verb, key, text, checksum(text)
        operation = Operation(self.mesh, program, src, dst, call=call, combine=combine, own=own)
        operation.counted = counted
        self.mesh.submit(operation)
        return TcpWork(self.mesh, operation)

    def sum_flows(self, nbytes: int) -> Sequence[Sequence[Flow]]:
        """Return the flows of each round of an all_sum of `nbytes` bytes of float32, as this comm sends them."""
        numel = nbytes // 4

        def pattern(rank: int) -> patterns.Steps:
            return iter(plans.sum_steps(rank, self.size, numel, 4))

        return list(patterns.flows(pattern, self.size, 4))

    # groups, windows and the end
    # ------------------------------------------------------------------------------------------

    def check_process(self) -> None:
        self.mesh.station.home.check()

    def agree(self, verb: str, length: str = "", key: object = "") -> TcpWork:
        """Return a finished work, because every frame carries a checksum of its call."""
        return TcpWork(self.mesh, None)

    def window(
        self, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]], shows: bool = True
    ) -> TcpBuffers:
        """Create memory on every rank r that the ranks in sources[r] may write to through its pump. Collective."""
        if self._windows is None:
            self._windows = WindowPost(self.mesh)
        return TcpBuffers(self._windows, numel, dtype, sources, self.barrier)

    def board(self, length: int) -> TcpBoard:
        """Create a Board on which rank 0 announces what all ranks do next. Collective."""
        self._boards += 1
        return TcpBoard(self.mesh, self._boards)

    def split(self, groups: Sequence[Sequence[int]]) -> TcpGroup:
        """Return the comm of this rank's group, with separate connections. Collective over all ranks."""
        self._splits += 1
        return self.among(next(group for group in groups if self.rank in group), self._splits)

    def among(self, ranks: Sequence[int], count: int) -> TcpGroup:
        """Return a comm among some ranks. Comms of the same ranks need different `count`. Collective among them."""
        members = tuple(self.members[peer] for peer in ranks)
        mesh = Mesh(self.mesh.station, mesh_number(self.mesh.ident, count, members), members, self._counts)
        return TcpGroup(mesh, tuple(self.placement[peer] for peer in ranks), self._counts)

    def crews(self, workers: int) -> list[TcpGroup]:
        """Create a group per worker, with all servers (ranks >= `workers`). Return those of this rank. Collective."""
        servers = list(range(workers, self.size))
        groups = [[worker, *servers] for worker in range(workers)]
        return [self.among(group, -1) for group in groups if self.rank in group]

    def progress(self) -> None:
        """Do nothing: the pump makes progress in its own thread."""

    def received(self) -> tuple[int, ...]:
        """Return the bytes received so far from each rank, summed over all groups of this process."""
        return tuple(self._counts) if self.service is None else self.service.received()

    def get_ready(self) -> None:
        """Do nothing: nothing is allocated on first use."""

    def why_lost(self, rank: int) -> str | None:
        """Return why a rank will not answer any more, or None."""
        return self.mesh.why_lost(rank)

    def abort(self, why: str = "", *, reset: bool = True) -> None:
        """End every operation of every rank with PeerLost at once. May be called from any thread."""
        for mesh in self.mesh.station.meshes:
            mesh.abort(why, reset=reset)

    def close(self, failure: str = "", abandoned: bool = False) -> None:
        station = self.mesh.station
        if station.home.left or station.closed:
            return
        try:
            if self.service is not None:
                self.service.close(failure, self.barrier)
            if not station.closed:
                self.mesh.part(failure or ("failed" if self.mesh.problem is not None else ""))
        finally:
            if not self.mesh.ident and not station.closed:  # closing a group leaves other groups open
                for mesh in station.meshes:
                    mesh.close()
                station.close()


class TcpComm(TcpGroup):
    """The comm of all ranks of one generation of a job. Ranks find each other through a store, and share a token."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: TextStore,
        deadline: float = DEADLINE,
        nodes: tuple[int, ...] = (),
        *,
        address: str = "127.0.0.1",
        token: bytes | None = None,
        generation: int = 0,
        settings: TcpSettings = PLAIN,
        name: str = "tcp",
    ) -> None:
        station = Station(
            rank,
            size,
            store,
            deadline,
            address=address,
            token=token,
            generation=generation,
            settings=settings,
            name=name,
        )
        counts = [0] * size
        try:
            mesh = Mesh(station, 0, tuple(range(size)), counts)
        except BaseException:
            station.close()
            raise
        super().__init__(mesh, nodes or (0,) * size, counts)


class MemberComm(TcpGroup):
    """The comm of one generation of an elastic job. Its listening socket and the addresses come from outside.

    `watch(late)` is called while this member waits for the ranks in `late`; it raises PeerLost to end the wait.
    """

    def __init__(
        self,
        rank: int,
        listener: Listener,
        places: Sequence[Place],
        generation: int,
        *,
        deadline: float,
        entering: float,
        watch: Callable[[TcpGroup | None, Sequence[int]], None],
    ) -> None:
        self.mesh: Any = None
        station = Station(
            rank,
            len(places),
            None,
            deadline,
            generation=generation,
            settings=listener.settings,
            listener=listener,
            places=places,
            entering=entering,
            watch=lambda late: watch(self if self.mesh is not None else None, late),
        )
        counts = [0] * len(places)
        try:
            mesh = Mesh(station, 0, tuple(range(len(places))), counts)
        except BaseException:
            station.close()
            raise
        super().__init__(mesh, (0,) * len(places), counts)

    def end(self, *, reset: bool) -> None:
        """Close all connections of the generation, on this member and on its peers. The listening socket stays open."""
        self.abort("this member has left it", reset=reset)
        self.mesh.station.close()


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous()


def _apart(src: Tensor, dst: Tensor) -> Tensor:
    """Return src, or a copy if it shares memory with dst: a range may be written while a slow line still sends it."""
    first, last = src.data_ptr(), src.data_ptr() + src.nbytes
    return src.clone() if first < dst.data_ptr() + dst.nbytes and dst.data_ptr() < last else src
