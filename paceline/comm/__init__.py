"""What moves bytes among ranks.

shm        one host, CPU tensors: shared memory and futexes
gloo, nccl torch.distributed
thread     ranks as threads of one process, for tests
"""

from paceline.menu import Menu

MENU = Menu(
    "comm",
    {
        "shm": "paceline.comm.shm:ShmComm",
        "gloo": "paceline.comm.torchdist:GlooComm",
        "nccl": "paceline.comm.nccl:NcclComm",
        "thread": "paceline.comm.thread:ThreadComm",
    },
)
