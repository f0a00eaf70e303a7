"""Procedural clips: a real emoji drawing moves over a white frame and bounces off its edges. Nothing was filmed.

Sprites come from the icon packages of :mod:`mmspec.training.emoji`. A clip is a sprite, a start and a velocity; all of
them are listed, so that a share can be kept from training. The place of frame f is the triangle wave of
``start + velocity * f`` between the edges, for each axis alone.

Symbols: n clips, F frames, S side of the frames in pixels.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from mmspec.training.emoji import STYLES, EmojiConfig, load_emoji, plain_names
from mmspec.training.names import ICONIC

SPRITE_NAMES = (
    "dog-face", "cat-face", "pig-face", "panda", "penguin", "fish", "red-apple", "banana", "strawberry", "watermelon",
    "pizza", "sun", "star", "rocket", "soccer-ball", "ghost",
)  # fmt: skip
"""Emoji that move, all of them among those of ``mmspec/emoji-t2i``."""

MOTIONS = (
    "{name} moves {way}",
    "{name} moves {way}",  # the documented form, twice as likely as each other one
    "a {name} moving {way}",
    "{name} {way}",
    "it moves {way}",
)
STILL = ("{name} stays still", "{name} stays still", "a {name} that does not move", "{name} still", "it stays still")


@dataclass(frozen=True)
class ClipConfig:
    """Which clips there are.

    Args:
        data: Folder of the emoji archives, see :class:`mmspec.training.emoji.EmojiConfig`.
        frame_size, sprite_size: Sides of frames and sprites in pixels.
        num_frames: Frames of a clip.
        start_step: Starts are multiples of it, in pixels.
        speed: Pixels a frame, on each axis on which a sprite moves.
        style: Drawing style of the sprites.
        names: Emoji that move.
        diagonal: Whether sprites also move along both axes at once.
        held_out: Share of the clips that training never sees.
        seed: Which clips these are.

    Raises:
        ValueError: If a number is out of range or a name is unknown.
    """

    data: Path
    frame_size: int = 32
    sprite_size: int = 16
    num_frames: int = 9
    start_step: int = 4
    speed: int = 2
    style: str = "noto"
    names: tuple[str, ...] = field(default=SPRITE_NAMES)
    diagonal: bool = False
    held_out: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))
        for name in ("frame_size", "sprite_size", "num_frames", "start_step", "speed"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must be at least 1.")
        if self.sprite_size >= self.frame_size:
            raise ValueError(f"`sprite_size` is {self.sprite_size}; it must be below `frame_size` {self.frame_size}.")
        if self.style not in STYLES:
            raise ValueError(f"`style` is {self.style!r}; choose from {', '.join(STYLES)}.")
        if unknown := sorted(set(self.names) - set(ICONIC)) or not self.names:
            raise ValueError(f"`names` holds {unknown or 'nothing'}; choose from {', '.join(ICONIC)}.")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"`held_out` is {self.held_out}; it must lie in [0, 1).")

    @property
    def room(self) -> int:
        """Largest coordinate of a sprite's corner."""
        return self.frame_size - self.sprite_size


@dataclass(frozen=True)
class ClipSet:
    """Sprites, and the clips that can be made of them.

    Attributes:
        config: What was asked for.
        sprites: Drawings on white (names, side, side, 3), uint8.
        clips: Sprite, start (row, column) and velocity (rows, columns a frame) of each clip (n, 5).
        trained, held_out: Which clips are for training, and which for measuring.
    """

    config: ClipConfig
    sprites: np.ndarray
    clips: np.ndarray
    trained: np.ndarray
    held_out: np.ndarray

    def places(self, chosen: np.ndarray) -> np.ndarray:
        """Row and column of the sprite's corner in every frame of the ``chosen`` clips (n, F, 2)."""
        start, velocity = self.clips[chosen, 1:3], self.clips[chosen, 3:5]
        frames = np.arange(self.config.num_frames)[None, :, None]
        room = self.config.room
        turn = (start[:, None] + velocity[:, None] * frames) % (2 * room)
        return np.where(turn > room, 2 * room - turn, turn)

    def render(self, chosen: np.ndarray) -> np.ndarray:
        """Frames of the ``chosen`` clips (n, F, S, S, 3), uint8."""
        config, size = self.config, self.config.sprite_size
        shape = (len(chosen), config.num_frames, config.frame_size, config.frame_size, 3)
        frames = np.full(shape, 255, dtype=np.uint8)
        for clip, (sprite, places) in enumerate(zip(self.clips[chosen, 0], self.places(chosen), strict=True)):
            for frame, (row, column) in enumerate(places):
                frames[clip, frame, row : row + size, column : column + size] = self.sprites[sprite]
        return frames

    def caption(self, clip: int, rng: random.Random) -> str:
        """One of the captions of ``clip``."""
        sprite, _, _, down, right = self.clips[clip]
        name = rng.choice(plain_names(self.config.names[sprite]))
        return rng.choice(MOTIONS if down or right else STILL).format(name=name, way=way(int(down), int(right)))

    def plain_caption(self, clip: int) -> str:
        """The documented caption of ``clip``."""
        sprite, _, _, down, right = self.clips[clip]
        name = plain_names(self.config.names[sprite])[-1]
        return (MOTIONS if down or right else STILL)[0].format(name=name, way=way(int(down), int(right)))


def way(down: int, right: int) -> str:
    """Words for a direction such as "up and left"; empty for none."""
    words = [("up", "", "down")[int(np.sign(down)) + 1], ("left", "", "right")[int(np.sign(right)) + 1]]
    return " and ".join(word for word in words if word)


def all_captions(names: tuple[str, ...]) -> list[str]:
    """Every caption that training can draw."""
    ways = [way(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if down or right]
    words = [plain for name in names for plain in plain_names(name)]
    moving = [form.format(name=name, way=where) for form in dict.fromkeys(MOTIONS) for name in words for where in ways]
    return moving + [form.format(name=name) for form in dict.fromkeys(STILL) for name in words]


def load_clips(config: ClipConfig) -> ClipSet:
    """Rasterise the sprites and list the clips.

    A moving sprite starts where it has room to move its way first; a corner is no start of "moves left".

    Raises:
        FileNotFoundError: If the emoji archives are missing and cannot be fetched.
    """
    emoji = load_emoji(EmojiConfig(data=config.data, size=config.sprite_size))
    place = {
        name: i for i, (name, style) in enumerate(zip(emoji.names, emoji.styles, strict=True)) if style == config.style
    }
    sprites = emoji.images[[place[name] for name in config.names]]
    starts, ways = range(0, config.room + 1, config.start_step), (-config.speed, 0, config.speed)
    axis = [(start, speed) for start in starts for speed in ways if 0 <= start + 2 * speed <= config.room]
    clips = np.array(
        [
            (sprite, row, column, down, right)
            for sprite in range(len(sprites))
            for row, down in axis
            for column, right in axis
            if config.diagonal or not (down and right)
        ],
        dtype=np.int64,
    )
    order = np.random.default_rng(config.seed).permutation(len(clips))
    kept_out = round(config.held_out * len(clips))
    return ClipSet(config, sprites, clips, np.sort(order[kept_out:]), np.sort(order[:kept_out]))


def to_videos(frames: np.ndarray) -> Tensor:
    """uint8 frames (n, F, S, S, 3) as videos (n, 3, F, S, S) in [-1, 1]."""
    return rearrange(torch.from_numpy(frames).float() / 127.5 - 1, "n f h w c -> n c f h w").contiguous()
