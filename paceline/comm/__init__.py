"""Transports that move bytes among ranks.

shm        one host, CPU tensors: shared memory and futexes
node       several hosts, CPU tensors: shared memory inside a host, torch.distributed between hosts
tcp        paceline's own sockets: authenticated by a token, and abortable
gloo, nccl torch.distributed
thread     ranks as threads of one process, for tests
"""

from paceline.menu.menu import Menu

MENU = Menu(
    "comm",
    {
        "shm": "paceline.comm.shm.shm:ShmComm",
        "node": "paceline.comm.node:NodeComm",
        "tcp": "paceline.comm.tcp.tcp:TcpComm",
        "gloo": "paceline.comm.torch.gloo:GlooComm",
        "nccl": "paceline.comm.torch.nccl:NcclComm",
        "thread": "paceline.comm.thread:ThreadComm",
    },
)
