"""The loop of PyTorch's mnist example. Lines with `# +` are paceline's; `# -` shows the line that one replaces.

    python examples/loops/mnist.py                           alone
    paceline run -np 2 -- python examples/loops/mnist.py     two workers, the same result

The last batch is short: its samples weigh as much as all others.
"""

import argparse

import torch
import torch.nn.functional as F
from small import Net, digits
from torch import optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import paceline  # +

worker = paceline.join()  # +


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    # - for batch_idx, (data, target) in enumerate(train_loader):
    for batch_idx, (data, target) in enumerate(worker.batches(train_loader)):  # +
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        # - if batch_idx % args.log_interval == 0:
        if batch_idx % args.log_interval == 0 and worker.first:  # +
            print(f"epoch {epoch} batch {batch_idx}: loss {loss.item():.6f}")


def test(model, test_loader):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    samples = len(test_loader.dataset)
    print(f"test: loss {test_loss / samples:.4f}, {correct} of {samples} right")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--save-model")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))

    args.batch_size //= worker.size  # +
    train_loader = DataLoader(digits(101, seed=2), batch_size=args.batch_size)
    test_loader = DataLoader(digits(50, seed=3), batch_size=25)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    paceline.wrap(model, optimizer)  # +

    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch)
        if worker.first:  # +
            test(model, test_loader)
        scheduler.step()

    # - if args.save_model:
    if args.save_model and worker.first:  # +
        torch.save(model.state_dict(), args.save_model)


if __name__ == "__main__":
    main()
