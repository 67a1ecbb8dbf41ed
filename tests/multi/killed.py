"""A user's script that trains three networks and goes on from its last checkpoint: killed.py FOLDER LOADERS."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline
from paceline.workload.models.small_cnn import small_cnn

SAMPLES, BATCH, EPOCHS, EVERY = 92, 4, 3, 5


class Images(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        image = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(number))
        return image, number % 10, number


def networks():
    return nn.ModuleDict(
        {
            "plain": small_cnn(channels=1, image_size=8, width=4).model,
            "norm": nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)),
            "drop": nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10)),
        }
    )


def main(folder, loaders):
    worker = paceline.join()
    torch.manual_seed(0)
    model = networks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pace = paceline.wrap(model, optimizer)
    torch.manual_seed(1 + worker.rank)  # dropout differs between ranks
    loader = DataLoader(Images(), BATCH, shuffle=True, num_workers=loaders)
    batches = worker.batches(loader, epochs=EPOCHS)
    if (folder / "kept" / "latest").exists():
        state = pace.load(folder / "kept")
        batches.load_state_dict(state["batches"])
        torch.set_rng_state(state["random"])
        print(f"resumed from step {pace.steps}, of rank {worker.rank}", flush=True)
    with open(folder / f"ids.{worker.rank}", "a") as log:
        for images, labels, ids in batches:
            log.write(" ".join(map(str, ids.tolist())) + "\n")
            log.flush()
            sum(nn.functional.cross_entropy(network(images), labels) for network in model.values()).backward()
            pace.step()
            if pace.steps % EVERY == 0:
                pace.save(folder / "kept", batches=batches.state_dict(), random=torch.get_rng_state())
    pace.save(folder / "end", random=torch.get_rng_state())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
