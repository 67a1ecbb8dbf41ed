"""The loop of PyTorch's word_language_model example. Lines with `# +` are paceline's; `# -` shows what one replaces.

    python examples/loops/word_language_model.py                           alone
    paceline run -np 2 -- python examples/loops/word_language_model.py     two workers, the same result

It has no optimizer: it clips p.grad and updates the parameters by hand. `wrap` gets one that never steps. Every rank
evaluates, because the learning rate depends on it.
"""

import argparse
import math

import torch
from small import RNNModel, text
from torch import nn

import paceline  # +

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=20.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--bptt", type=int, default=6)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--save", default="model.pt")
args = parser.parse_args()
torch.manual_seed(args.seed)
torch.set_default_dtype(getattr(torch, args.dtype))


def batchify(data, bsz):
    """Return the text as columns, each a part of it."""
    nbatch = data.size(0) // bsz
    return data[: nbatch * bsz].view(bsz, nbatch).t().contiguous()


worker = paceline.join()  # +
ntokens, eval_batch_size = 11, 2
train_data = batchify(text(120, ntokens, seed=2), args.batch_size)
val_data = batchify(text(40, ntokens, seed=3), eval_batch_size)
test_data = batchify(text(40, ntokens, seed=4), eval_batch_size)
train_data = train_data[:, worker.rank :: worker.size].contiguous()  # +
args.batch_size //= worker.size  # +
model = RNNModel(ntokens, 12)
criterion = nn.NLLLoss()
paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=args.lr))  # +


def repackage_hidden(h):
    """Return hidden states without their history."""
    return tuple(v.detach() for v in h)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(data_source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(eval_batch_size)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, args.bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train():
    model.train()
    hidden = model.init_hidden(args.batch_size)
    for i in range(0, train_data.size(0) - 1, args.bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()

        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)


lr = args.lr
best_val_loss = None
for epoch in range(1, args.epochs + 1):
    train()
    val_loss = evaluate(val_data)
    if worker.first:  # +
        print(f"epoch {epoch}: valid loss {val_loss:.4f}, perplexity {math.exp(val_loss):.2f}, lr {lr}")
    if not best_val_loss or val_loss < best_val_loss:
        if worker.first:  # +
            with open(args.save, "wb") as f:
                torch.save(model, f)
        best_val_loss = val_loss
    else:
        lr /= 4.0  # no improvement: anneal

if worker.first:  # +
    with open(args.save, "rb") as f:
        model = torch.load(f, weights_only=False)
    print(f"test loss {evaluate(test_data):.4f}")
