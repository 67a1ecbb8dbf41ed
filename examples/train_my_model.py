"""Your own loop on many workers: three lines are paceline's, and a fourth if it shall deal out the samples.

    python examples/train_my_model.py                                alone
    paceline run -np 2 -- python examples/train_my_model.py          two workers
    torchrun --nproc-per-node 2 examples/train_my_model.py           two workers, started by torchrun

The global batch is 64 in all cases, so all of them see the same samples in the same order. A file name as
argument saves the trained parameters there.
"""

import sys
import zlib

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def make_dataset() -> TensorDataset:
    points = torch.randn(1024, 8, generator=torch.Generator().manual_seed(2))
    return TensorDataset(points, points.square().sum(1, keepdim=True).sqrt())


def checksum(model: nn.Module) -> str:
    values = torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
    return f"{zlib.crc32(values.numpy().tobytes()):08x}"


def main() -> None:
    model, dataset, criterion = make_model(), make_dataset(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    worker = paceline.join()
    pace = paceline.wrap(model, optimizer, strategy="allreduce")
    for x, y in worker.batches(dataset, batch_size=64 // worker.size, epochs=5):
        loss = criterion(model(x), y)
        loss.backward()
        pace.step()

    if worker.first:
        x, y = worker.device.place(dataset.tensors)
        with torch.no_grad():
            print(f"loss after {pace.steps} steps: {criterion(model(x), y):.6f}")
        if len(sys.argv) > 1:
            torch.save(model.state_dict(), sys.argv[1])
    print(f"rank {worker.rank} of {worker.size}: parameters {checksum(model)}")


if __name__ == "__main__":
    main()
