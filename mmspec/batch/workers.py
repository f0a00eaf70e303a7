"""Which share of a manifest this process has, when ``accelerate launch`` or ``torchrun`` started several.

Row n belongs to worker n modulo the number of workers, whatever is done already, so that workers that start at different times agree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Worker:
    """Worker ``rank`` of ``count``, number ``local_rank`` on its machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.count == 1

    @property
    def name(self) -> str:
        """Name of its journal."""
        return str(self.rank)

    def share(self, rows: Sequence[T]) -> list[T]:
        """The rows that it has to do."""
        return list(rows[self.rank :: self.count])

    def device(self, wanted: str) -> str:
        """``wanted``, or its own GPU where that is left to us and there are several workers."""
        if wanted != "auto" or self.alone:
            return wanted
        import torch

        return f"cuda:{self.local_rank}" if torch.cuda.is_available() else "auto"


def this_worker() -> Worker:
    """This process, by the environment of its launcher.

    Raises:
        ValueError: If the environment is contradictory.
    """
    rank, count, local = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    if not 0 <= rank < count:
        raise ValueError(f"RANK is {rank} and WORLD_SIZE {count}; the rank must lie below the number of workers.")
    return Worker(rank, count, local)


def wait_for_others(worker: Worker, patience: timedelta = timedelta(days=365)) -> None:
    """Wait until every worker that the launcher started has come here too.

    torchrun and accelerate stop all workers as soon as one of them ends with an exit code: a worker whose rows failed
    must not say so before the others are done. Elsewhere there is nothing to wait for.

    Raises:
        torch.distributed.DistStoreError: If ``patience`` is over.
    """
    if worker.alone or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    from torch.distributed import rendezvous

    store, _, _ = next(rendezvous("env://", worker.rank, worker.count, timeout=patience))
    store.set(f"done/{worker.rank}", "")
    store.wait([f"done/{rank}" for rank in range(worker.count)], patience)
