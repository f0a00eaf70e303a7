"""Several processes that share each step of a training: data parallelism with equal weights everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


@contextmanager
def workers() -> Iterator[None]:
    """Join the other processes if ``torchrun`` started several; each then computes a part of every step.

    Processes with a thread each use the cores of a processor better than the threads of one process do, above all
    when others use the machine too.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def num_workers() -> int:
    """Processes that share each step."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first_worker() -> bool:
    """Whether this process is the one that saves and reports."""
    return not dist.is_initialized() or dist.get_rank() == 0


def batch_number(step: int) -> int:
    """Which batch this process computes in ``step``: the step itself if there is one process."""
    return step * num_workers() + (dist.get_rank() if dist.is_initialized() else 0)


def agree(fraction: float, stop: bool) -> tuple[float, bool]:
    """The first worker's clock and whether to stop, for all of them: they must take the same steps."""
    if num_workers() == 1:
        return fraction, stop
    message = torch.tensor([fraction, float(stop)], dtype=torch.float64)
    dist.broadcast(message, src=0)
    return message[0].item(), bool(message[1].item())


def average_gradients(model: nn.Module) -> None:
    """Replace gradients by their mean over the workers; one that a worker has not got counts as zero."""
    if num_workers() == 1:
        return
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients]) / num_workers()
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
