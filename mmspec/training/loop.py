"""The loop that every recipe shares: schedule, averaging, atomic checkpoints, exact resumption and a log.

Randomness is a function of (seed, step), see :func:`step_generator`; so a resumed run sees the data it would have
seen. With a limit in steps it ends with the same weights as an uninterrupted run; with a limit in minutes the learning
rate follows the clock and the two differ a little.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from tqdm import tqdm

from mmspec.training.workers import agree, average_gradients, is_first_worker

logger = logging.getLogger(__name__)

LossFunction = Callable[[int], tuple[Tensor, dict[str, float]]]
"""``step -> (scalar loss with a graph, numbers for the log)``."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Settings that every recipe has.

    Args:
        output: Folder for the checkpoint, log, loss curve and result.
        steps, minutes: Limits; the run ends at the first. Minutes count over all resumptions. Give at least one.
        batch_size: Samples a step.
        learning_rate, warmup_steps: Peak of the cosine schedule and its linear start.
        weight_decay, clip_norm: AdamW's decay of matrices, and the limit of the gradient's norm.
        average_decay: Decay of the running average of the weights, which is what gets saved in the end.
        precision: ``"fp32"``, ``"bf16"`` (autocast; many times faster on processors with AMX, slower on those without
            bf16 instructions) or ``"auto"``, which asks the device.
        compile: Compile the network with ``torch.compile``; pays from some minutes of training on.
        checkpoint_minutes, log_every: Minutes between checkpoints and steps between log entries.
        seed: Seed of the weights, the data order and every random choice.
        resume: Go on from the checkpoint in ``output`` if there is one.

    Raises:
        ValueError: If a number is out of range, or there is no limit.
    """

    output: Path
    steps: int | None = None
    minutes: float | None = None
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    average_decay: float = 0.999
    precision: str = "auto"
    compile: bool = False
    checkpoint_minutes: float = 3.0
    log_every: int = 20
    seed: int = 0
    resume: bool = False
    device: str = field(default="cpu")

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", Path(self.output))
        if self.steps is None and self.minutes is None:
            raise ValueError("`steps` and `minutes` are both None; give a limit.")
        for name in (
            "steps",
            "minutes",
            "batch_size",
            "learning_rate",
            "clip_norm",
            "checkpoint_minutes",
            "log_every",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` is {value}; it must be positive.")
        if not 0 <= self.average_decay < 1:
            raise ValueError(f"`average_decay` is {self.average_decay}; it must lie in [0, 1).")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ValueError(f"`precision` is {self.precision!r}; choose 'auto', 'fp32' or 'bf16'.")

    @property
    def autocast(self) -> torch.autocast:
        """A fresh autocast context for the forward pass."""
        device = torch.device(self.device).type
        wanted = self.precision == "bf16" or (self.precision == "auto" and fast_bf16(device))
        return torch.autocast(device, torch.bfloat16, enabled=wanted)

    def learning_rate_at(self, step: int, progress: float) -> float:
        """Linear warm-up over steps, then a cosine over ``progress`` (0 to 1) down to 1 % of the peak."""
        warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.learning_rate * warmup * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def fast_bf16(device: str) -> bool:
    """Whether bf16 matrix products are quicker than float32 ones: on GPUs that have them and processors with AMX."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and torch.cpu._is_amx_tile_supported()


def step_generator(seed: int, step: int) -> torch.Generator:
    """The random numbers of one step, the same before and after a resumption."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


@dataclass
class _Progress:
    step: int = 0
    seconds: float = 0.0
    log: list[dict[str, float]] = field(default_factory=list)

    def fraction(self, config: LoopConfig) -> float:
        done = [self.step / config.steps] if config.steps else []
        return max(done + ([self.seconds / 60 / config.minutes] if config.minutes else []))


def optimizer_for(model: nn.Module, config: LoopConfig) -> torch.optim.AdamW:
    """AdamW that decays matrices only: norms, biases and embeddings' scales are left alone."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.97))


def fit(
    model: nn.Module, loss_of: LossFunction, config: LoopConfig, after_step: Callable[[int], None] | None = None
) -> float:
    """Train ``model`` until a limit and leave the averaged weights in it.

    Args:
        model: Everything that is trained, and buffers that a resumption must restore.
        loss_of: The loss of a step; it draws its data from :func:`step_generator`.
        config: Limits and settings.
        after_step: Called with the step after each update, without gradients.

    Returns:
        Seconds trained, over all resumptions.

    Raises:
        KeyboardInterrupt: On SIGINT, once the step has ended and a checkpoint is written.
        ValueError: If the checkpoint to resume from was made with other settings.
    """
    config.output.mkdir(parents=True, exist_ok=True)
    optimizer = optimizer_for(model, config)
    average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    progress = _restore(model, optimizer, average, config) if config.resume else _Progress()
    started, saved = time.monotonic() - progress.seconds, time.monotonic()
    bar = tqdm(total=config.steps, initial=progress.step, desc=type(config).__name__, disable=not is_first_worker())
    with bar, _interrupts() as interrupted:
        while True:
            fraction, stop = agree(progress.fraction(config), interrupted.is_set())
            if fraction >= 1 or stop:
                break
            numbers = _step(model, optimizer, average, loss_of, config, (progress.step, fraction))
            if after_step is not None:
                with torch.no_grad():
                    after_step(progress.step)
            progress.step += 1
            progress.seconds = time.monotonic() - started
            bar.update()
            if progress.step % config.log_every == 0:
                entry = {"step": progress.step, "seconds": round(progress.seconds, 1), **numbers}
                progress.log.append(entry)
                bar.set_postfix({name: f"{value:.4g}" for name, value in numbers.items()})
            if time.monotonic() - saved > 60 * config.checkpoint_minutes:
                _save(model, optimizer, average, config, progress)
                saved = time.monotonic()
    _save(model, optimizer, average, config, progress)
    if stop:
        raise KeyboardInterrupt(f"stopped at step {progress.step}; resume from {config.output}")
    load_average(model, average)
    return progress.seconds


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
    loss_of: LossFunction,
    config: LoopConfig,
    place: tuple[int, float],
) -> dict[str, float]:
    step, fraction = place
    rate = config.learning_rate_at(step, fraction)
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss, numbers = loss_of(step)
    loss.backward()
    average_gradients(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    # A young average must not remember the random initial weights.
    decay = min(config.average_decay, (1 + step) / (10 + step))
    current = dict(model.named_parameters())
    torch._foreach_lerp_(list(average.values()), [current[name].detach() for name in average], 1 - decay)
    return {"loss": loss.item(), "learning_rate": rate, "gradient_norm": norm.item(), **numbers}


def load_average(model: nn.Module, average: dict[str, Tensor]) -> None:
    """Replace the trained parameters of ``model`` by their running average."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in average:
                parameter.copy_(average[name])


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that SIGINT sets, so that a step is never cut in two. Outside the main thread it stays unset."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handler(signum: int, frame: FrameType | None) -> None:
        event.set()

    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)


_MAY_CHANGE = {"output", "steps", "minutes", "checkpoint_minutes", "log_every", "resume", "compile", "device"}


def _fingerprint(config: LoopConfig) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(config).items() if name not in _MAY_CHANGE}
    return json.loads(json.dumps(settings, default=str))


def checkpoint_path(output: Path) -> Path:
    return output / "checkpoint.pt"


def _save(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
    config: LoopConfig,
    progress: _Progress,
) -> None:
    """Write beside the old checkpoint, flush, then rename: a kill at any moment leaves one that is whole."""
    if not is_first_worker():
        return
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "average": average,
        "progress": asdict(progress),
        "config": _fingerprint(config),
    }
    path = checkpoint_path(config.output)
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    (config.output / "log.json").write_text(json.dumps(progress.log, indent=0))
    draw_curve([entry["loss"] for entry in progress.log], config.output / "loss.png")


def _restore(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor], config: LoopConfig
) -> _Progress:
    path = checkpoint_path(config.output)
    if not path.exists():
        logger.warning("nothing to resume in %s: starting anew", config.output)
        return _Progress()
    state = torch.load(path, weights_only=True, map_location=config.device)
    for name, value in _fingerprint(config).items():
        if state["config"].get(name) != value:
            raise ValueError(
                f"`{name}` is {value!r}, but {path} was made with {state['config'].get(name)!r}; "
                "resume with the same settings or choose another output folder."
            )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    average.update(state["average"])
    return _Progress(**state["progress"])


def restore_weights(model: nn.Module, output: Path) -> None:
    """Load the newest weights, not their average, of the checkpoint in ``output`` into ``model``."""
    path = checkpoint_path(output)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint in {output} to start from.")
    model.load_state_dict(torch.load(path, weights_only=True, map_location="cpu")["model"])


def restore_average(model: nn.Module, output: Path) -> dict[str, float]:
    """Load the averaged weights of the checkpoint in ``output`` into ``model``; returns its steps and minutes."""
    state = torch.load(checkpoint_path(output), weights_only=True, map_location="cpu")
    model.load_state_dict(state["model"])
    load_average(model, state["average"])
    return _summary(state)


def read_settings(output: Path) -> dict[str, Any]:
    """Settings that the checkpoint in ``output`` was made with, as JSON holds them; limits and device are not among them."""
    settings: dict[str, Any] = torch.load(checkpoint_path(output), weights_only=True, map_location="cpu")["config"]
    return settings


def read_progress(output: Path) -> dict[str, float]:
    """Steps and minutes of the checkpoint in ``output``."""
    return _summary(torch.load(checkpoint_path(output), weights_only=True, map_location="cpu"))


def _summary(state: dict[str, Any]) -> dict[str, float]:
    return {"steps": state["progress"]["step"], "minutes": state["progress"]["seconds"] / 60}


def draw_curve(values: list[float], path: Path, size: tuple[int, int] = (640, 320)) -> None:
    """Draw a loss curve with a logarithmic vertical axis as a PNG."""
    finite = [value for value in values if math.isfinite(value) and value > 0]
    if len(finite) < 2:
        return
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    logs = [math.log(value) for value in finite]
    low, high = min(logs), max(logs)
    width, height = size[0] - 20, size[1] - 40
    points = [
        (10 + width * i / (len(logs) - 1), 20 + height * (high - value) / (high - low or 1.0))
        for i, value in enumerate(logs)
    ]
    draw.line(points, fill="#1f77b4", width=2)
    draw.text((10, 4), f"loss {max(finite):.4g}", fill="black")
    draw.text((10, size[1] - 16), f"loss {min(finite):.4g}, last {finite[-1]:.4g}", fill="black")
    image.save(path)
