"""The loop of PyTorch's vae example. Lines with `# +` are paceline's; `# -` shows the line that one replaces.

    python examples/loops/vae.py                           alone
    paceline run -np 2 -- python examples/loops/vae.py     two workers, the same result

Its loss is a sum over the batch. Ranks average gradients, so a sum is multiplied by their number.
"""

import argparse

import torch
import torch.nn.functional as F
from small import VAE, Noise, digits
from torch import optim
from torch.utils.data import DataLoader

import paceline  # +

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--samples", help="file for images of every epoch")
parser.add_argument("--save-model")
args = parser.parse_args()
torch.manual_seed(args.seed)
torch.set_default_dtype(getattr(torch, args.dtype))

worker = paceline.join()  # +
args.batch_size //= worker.size  # +
train_loader = DataLoader(digits(96, seed=2), batch_size=args.batch_size)
test_loader = DataLoader(digits(32, seed=3), batch_size=args.batch_size)
# - model = VAE(Noise(args.seed))
model = VAE(Noise(args.seed + worker.rank))  # +
optimizer = optim.Adam(model.parameters(), lr=1e-3)
paceline.wrap(model, optimizer)  # +


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.flatten(1), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    # - for data, _ in train_loader:
    for data, _ in worker.batches(train_loader):  # +
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss = loss * worker.size  # +
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    if worker.first:  # +
        print(f"epoch {epoch}: average loss {train_loss / len(train_loader.dataset):.4f}")


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data, _ in test_loader:
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
    print(f"epoch {epoch}: test loss {test_loss / len(test_loader.dataset):.4f}")


for epoch in range(1, args.epochs + 1):
    train(epoch)
    if worker.first:  # +
        test(epoch)
    # - if args.samples:
    if args.samples and worker.first:  # +
        with torch.no_grad():
            torch.save(model.decode(Noise(epoch)(8, 4)).view(8, 8, 8), args.samples)
# - if args.save_model:
if args.save_model and worker.first:  # +
    torch.save(model.state_dict(), args.save_model)
