"""Small idx folders for tests, written byte by byte."""

import gzip
import struct

import torch


def idx_bytes(values):
    head = struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape)
    return head + bytes(values.flatten().tolist())


def write_folder(folder, *, train=40, test=13, size=4, classes=3, packed=False):
    """Write images whose brightness depends on the label, so that they can be learned."""
    folder.mkdir(exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        labels = torch.arange(count) % classes
        noise = torch.randint(0, 60, (count, size, size), generator=torch.Generator().manual_seed(count))
        images = noise + 90 * labels.view(-1, 1, 1)
        for what, values in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            raw = idx_bytes(values)
            name = f"{part}-{what}" + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(raw) if packed else raw)
    return folder
