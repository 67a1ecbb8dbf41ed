"""Collectives over torch.distributed: gloo and nccl."""
