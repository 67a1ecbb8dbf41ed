"""Run by every rank: a Lightning module with one device per process; rank 0 writes the weights."""

import json
import os
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import lightning
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import paceline
from paceline.integrations import lightning_callback

torch.set_num_threads(1)
worker = paceline.join()


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1).double()

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


dice = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(32, 4, generator=dice).double(), torch.randn(32, 1, generator=dice).double())
sampler = DistributedSampler(data, worker.size, worker.rank, shuffle=False)
paced = lightning_callback()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    gradient_clip_val=0.1,
    callbacks=[paced],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,
)
model = Lit()
trainer.fit(model, DataLoader(data, batch_size=8 // worker.size, sampler=sampler))
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
if worker.first:
    Path(sys.argv[1]).write_text(json.dumps({"weights": weights, "steps": paced.pace.steps}))
