"""Clocks of networks count what runs inside them and nothing else."""

from __future__ import annotations

import time

import torch

from mmspec.core.timing import NetworkClock


def test_a_clock_sums_what_runs_inside() -> None:
    clock = NetworkClock(torch.device("cpu"))
    for _ in range(2):
        with clock.running():
            time.sleep(0.02)
        time.sleep(0.05)
    first = clock.seconds()
    assert first >= 0.04
    assert clock.seconds() == first  # what was read is kept
    with clock.running():
        time.sleep(0.02)
    assert clock.seconds() >= first + 0.02
