"""The loop of nanoGPT. Lines with `# +` are paceline's; `# -` shows the line that one replaces.

    python examples/loops/nanogpt.py                           alone
    paceline run -np 2 -- python examples/loops/nanogpt.py     two workers, the same result

Micro-steps are divided among ranks. Only the last one of an update exchanges.
"""

import argparse
import contextlib
import math
import os

import torch
from small import GPT, text

import paceline  # +

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", default="out")
parser.add_argument("--init_from", default="scratch", choices=["scratch", "resume"])
parser.add_argument("--max_iters", type=int, default=8)
parser.add_argument("--dtype", default="float32", choices=["float64", "float32", "bfloat16", "float16"])
config = parser.parse_args()
eval_interval, eval_iters, log_interval, always_save_checkpoint = 4, 2, 2, True
gradient_accumulation_steps, batch_size, block_size, vocab_size = 4, 2, 8, 13
learning_rate, min_lr, warmup_iters, lr_decay_iters = 6e-3, 6e-4, 2, 20
weight_decay, grad_clip = 1e-1, 0.5

worker = paceline.join()  # +
torch.manual_seed(1337)
half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(config.dtype)
torch.set_default_dtype(torch.float64 if config.dtype == "float64" else torch.float32)
ctx = contextlib.nullcontext() if half is None else torch.autocast("cpu", dtype=half)
splits = {"train": text(400, vocab_size, seed=2), "val": text(100, vocab_size, seed=3)}


def get_batch(split, number):
    data, dice = splits[split], torch.Generator().manual_seed(number)
    ix = torch.randint(len(data) - block_size, (batch_size,), generator=dice).tolist()
    x, y = (torch.stack([data[i + shift : i + shift + block_size] for i in ix]) for shift in (0, 1))
    return x, y


def train_batches(number):
    while True:
        yield get_batch("train", number)
        number += 1


model, iter_num, best_val_loss = GPT(vocab_size, block_size), 0, 1e9
optimizer = model.configure_optimizer(learning_rate, weight_decay)
scaler = torch.amp.GradScaler("cpu", enabled=config.dtype == "float16")
if config.init_from == "resume":
    checkpoint = torch.load(os.path.join(config.out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scaler.load_state_dict(checkpoint["scaler"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
pace = paceline.wrap(model, optimizer)  # +


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {}
    for split in ("train", "val"):
        with ctx:
            out[split] = sum(model(*get_batch(split, -1 - k))[1].item() for k in range(eval_iters)) / eval_iters
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


batches = train_batches(iter_num * gradient_accumulation_steps)
batches = iter(worker.batches(batches))  # +
gradient_accumulation_steps //= worker.size  # +
X, Y = next(batches)
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr

    # - if iter_num % eval_interval == 0:
    if iter_num % eval_interval == 0 and worker.first:  # +
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = min(best_val_loss, losses["val"])
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "iter_num": iter_num,
                "best_val_loss": best_val_loss,
            }
            torch.save(checkpoint, os.path.join(config.out_dir, "ckpt.pt"))
    if iter_num >= config.max_iters:
        break

    for micro_step in range(gradient_accumulation_steps):
        with pace.no_sync() if micro_step < gradient_accumulation_steps - 1 else contextlib.nullcontext():  # +
            with ctx:
                logits, loss = model(X, Y)
                loss = loss / gradient_accumulation_steps
            X, Y = next(batches)  # the next batch, while the model is busy
            scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

    # - if iter_num % log_interval == 0:
    if iter_num % log_interval == 0 and worker.first:  # +
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")
    iter_num += 1
