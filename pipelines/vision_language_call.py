"""Arguments and outputs of calls that ask about pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.utils import BaseOutput

from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.templates import Template
from mmspec.drafters.base import check_positive
from mmspec.image.video_files import check_fps, read_fps, read_frames
from mmspec.vlm.clips import DEFAULT_FPS, Clip

OUTPUT_TYPES = ("text", "tokens")


@dataclass
class AnswerOutput(BaseOutput):
    """Answers.

    Attributes:
        texts: One string a prompt, without its stop string; ``None`` with ``output_type="tokens"``.
        tokens: New token ids of each row, the ending token included.
        stats: Forwards, seconds, guarantee, seeds and reasons of the ends.
    """

    texts: list[str] | None
    tokens: list[list[int]]
    stats: DecodeStats


@dataclass
class PartialAnswer(BaseOutput):
    """An answer while it is written.

    Attributes:
        text: The text so far; it only ever grows.
        delta: What is new in it.
        finished: Whether this is the whole answer.
        output: The complete :class:`AnswerOutput` once ``finished``.
        tokens: New token ids so far; the last of them may not show in ``text`` yet.
        stats: Figures so far, which go on changing.
    """

    text: str
    delta: str
    finished: bool = False
    output: AnswerOutput | None = None
    tokens: list[int] = field(default_factory=list)
    stats: DecodeStats | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerCall:
    """Checked arguments of a call; see ``VisionLanguagePipeline.__call__``.

    Raises:
        TypeError, ValueError: For a value out of range.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_strings: str | Sequence[str] | None = None
    stop_tokens: Sequence[int] | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    json_schema: Mapping[str, Any] | None = None
    generator: torch.Generator | Sequence[torch.Generator] | None = None
    seed: int | Sequence[int] | None = None
    speculate: bool = True
    micro_batch_size: int = 16
    output_type: str = "text"
    num_frames: int = 32
    video_fps: float | None = None

    def __post_init__(self) -> None:
        check_positive("max_new_tokens", self.max_new_tokens)
        check_positive("micro_batch_size", self.micro_batch_size)
        check_positive("num_frames", self.num_frames)
        if self.video_fps is not None:
            check_fps(self.video_fps, "video_fps")
        if isinstance(self.min_new_tokens, bool) or not isinstance(self.min_new_tokens, int):
            raise TypeError(f"`min_new_tokens` must be an integer, got {self.min_new_tokens!r}.")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(
                f"`min_new_tokens` must lie in [0, {self.max_new_tokens}], up to `max_new_tokens`, got "
                f"{self.min_new_tokens}."
            )
        if self.output_type not in OUTPUT_TYPES:
            raise ValueError(f"`output_type` must be one of {', '.join(OUTPUT_TYPES)}, got {self.output_type!r}.")
        _ = self.sampling
        if self.json_schema is not None:
            if self.min_new_tokens or self.stop_strings:
                raise ValueError(
                    "`json_schema` decides where an answer ends; leave out `min_new_tokens` and `stop_strings`."
                )
            Template.of_schema(self.json_schema)

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_k, self.top_p)

    def read_clip(self, source: Any) -> Clip:
        """The video ``source``, whatever :func:`mmspec.image.video_files.read_frames` reads, thinned to ``num_frames``."""
        fps = self.video_fps or read_fps(source) or DEFAULT_FPS
        return Clip.thinned(read_frames(source), fps, self.num_frames)

    @property
    def strings(self) -> list[str]:
        """The stop strings as a list."""
        given: Any = self.stop_strings
        return [] if given is None else [given] if isinstance(given, str) else list(given)
