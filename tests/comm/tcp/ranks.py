"""Ranks as threads that are connected over loopback sockets."""

import threading

from paceline.comm.rendezvous import MemoryStore
from paceline.comm.tcp.tcp import TcpComm


def run_tcp_ranks(size, work, *, deadline=60.0, **settings):
    """Run `work(comm)` on every rank; return their results, or raise the first failure."""
    store, results, failures = MemoryStore(), [None] * size, []

    def body(rank):
        try:
            comm = TcpComm(rank, size, store, deadline, **settings)
        except BaseException as problem:
            failures.append(problem)
            return
        try:
            results[rank] = work(comm)
            comm.close()
        except BaseException as problem:
            failures.append(problem)
            comm.close("failed")

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results
