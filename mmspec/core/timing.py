"""Seconds that a device spends on a stretch of work, without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceTimer:
    """Time the work issued between :meth:`start` and :meth:`stop` on ``device``.

    On CUDA the work runs on while the host goes ahead; events on its stream tell the time once the host has
    synchronised for another reason. Elsewhere the host's clock does.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = (
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            if device.type == "cuda"
            else None
        )
        self._began = self._ended = 0.0

    def start(self) -> None:
        if self._events:
            self._events[0].record()
        self._began = time.perf_counter()

    def stop(self) -> None:
        if self._events:
            self._events[1].record()
        self._ended = time.perf_counter()

    def seconds(self) -> float:
        """Seconds between start and stop; call it after a host synchronisation."""
        if self._events:
            return self._events[0].elapsed_time(self._events[1]) / 1e3
        return self._ended - self._began


class NetworkClock:
    """Seconds that a drafter's own network runs, summed over its forwards; read them once the host has synchronised."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: list[DeviceTimer] = []
        self._total = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the work that is issued inside."""
        timer = DeviceTimer(self._device)
        timer.start()
        yield
        timer.stop()
        self._open.append(timer)

    def seconds(self) -> float:
        """Seconds so far."""
        self._total += sum(timer.seconds() for timer in self._open)
        self._open.clear()
        return self._total
