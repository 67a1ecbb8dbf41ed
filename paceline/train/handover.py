"""Give the state of rank 0 to new members of an elastic job, between two steps.

shm   rank 0 copies its tensors into memory that all map, then posts the outline; only new members wait for that
tcp   outline and tensors are broadcast
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.comm.faults import fault
from paceline.files.snapshot import Snapshot, fill, room_for


def hand_over(comm: Any, state: dict[str, Any] | None, *, fresh: bool) -> dict[str, Any] | None:
    """Send `state`, which rank 0 has, to the members that are `fresh`. Return it there, and None elsewhere.

    Collective. On one host, the others do not wait for the copy.
    """
    outline, tensors = (b"", []) if state is None else Snapshot(state).outline()
    comm.get_ready()  # so that no later call waits for a member that copies
    sizes = torch.tensor([len(outline), room_for(tensors)])
    comm.broadcast(sizes, 0, "the size of the state").wait()
    words = torch.zeros(int(sizes[0]), dtype=torch.uint8)
    if outline:
        words.copy_(torch.frombuffer(bytearray(outline), dtype=torch.uint8))
    # In shared memory all members have the memory of rank 0; elsewhere each has its own.
    memory = comm.allocate(int(sizes[1]), torch.uint8, 1)
    fill(memory, tensors)
    fault("during the transfer" if state is None else "giving the state")
    # Whoever has the outline of rank 0 finds its memory filled.
    work = comm.broadcast(words, 0, "the outline of the state")
    if not comm.shares_results:
        work = comm.broadcast(memory, 0, "the state")
    if fresh or not comm.shares_results:
        work.wait()
    state = Snapshot.unpacked(words.numpy().tobytes(), memory, "the state of rank 0").state if fresh else None
    comm.release(memory)
    return state
