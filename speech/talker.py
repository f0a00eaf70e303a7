"""A talker and its code predictor in the layout of Qwen3-TTS: text first, then one step a frame of codes.

Hu et al., 2026, "Qwen3-TTS Technical Report": the talker's input of a frame is the sum of the embeddings of all its codes and of a text
embedding, its output draws code 0 or the end; the code predictor draws codes 1 to G - 1 one after the other from the talker's state.

Frames may be stacked: one step of the talker then draws several, which the code predictor spells out as if they were one with as many more
codes (as the frame stacking of NVIDIA's MagpieTTS). An end lies before a stack; speech that fills none is followed by silence.

Symbols: R rows, N tokens, L text tokens, T steps, G codes a step, K codes of a book, D talker width, E predictor width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import ConfigMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn
from torch.nn.functional import silu

from mmspec.models.strict import StrictModelMixin
from mmspec.speech.qwen_layers import QwenStack, StackSizes
from mmspec.speech.text_track import TextTrack

LONGEST = 25.0
"""Steps that a character may be planned to last; an untrained head would say anything."""


class TextProjection(nn.Module):
    """Two layers from the width of text embeddings to that of the talker."""

    def __init__(self, text_hidden_size: int, hidden_size: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_hidden_size, text_hidden_size)
        self.linear_fc2 = nn.Linear(text_hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(silu(self.linear_fc1(x)))


class CodePredictor(nn.Module):
    """Draws the residual codes of a frame. Position 0 holds the talker's state, position p >= 1 code p - 1; the output at position p >= 1
    goes through head p - 1 and predicts code p."""

    def __init__(self, hidden_size: int, num_codebooks: int, num_codes: int, sizes: StackSizes) -> None:
        super().__init__()
        self.num_codebooks, self.num_codes = num_codebooks, num_codes
        same = hidden_size == sizes.hidden_size
        self.small_to_mtp_projection = nn.Identity() if same else nn.Linear(hidden_size, sizes.hidden_size)
        self.stack = QwenStack(sizes)
        self.codec_embedding = nn.ModuleList(nn.Embedding(num_codes, hidden_size) for _ in range(num_codebooks - 1))
        self.lm_head = nn.Parameter(torch.empty(num_codebooks - 1, num_codes, sizes.hidden_size))
        nn.init.normal_(self.lm_head, std=0.02)

    def embed(self, codes: Tensor, first: int) -> Tensor:
        """Embeddings (R, n, D) of ``codes`` (R, n) of the books ``first``, ``first + 1``, ..., at least book 1."""
        parts = [self.codec_embedding[first - 1 + i](codes[:, i]) for i in range(codes.shape[1])]
        return torch.stack(parts, dim=1)

    def forward(self, inputs: Tensor, positions: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Hidden states (R, N, E) for ``inputs`` (R, N, D), talker states or embeddings, at ``positions``."""
        return self.stack(self.small_to_mtp_projection(inputs), positions, mask, cache)

    def start(self, states: Tensor) -> Tensor:
        """Talker ``states`` (..., D) as the predictor reads them, on the scale of its outputs (..., E): drafts may start there."""
        read = self.small_to_mtp_projection(states)
        return torch.nn.functional.rms_norm(read, read.shape[-1:])

    def _run(self, positions: Tensor) -> slice | None:
        """The heads of consecutive ``positions`` (N,), which then need no copy; reading them costs a synchronisation elsewhere."""
        first, last = int(positions[0]), int(positions[-1])
        return slice(first - 1, last) if first >= 1 and last - first == len(positions) - 1 else None

    def logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Float32 logits (R, N, K) of ``hidden`` (R, N, E) at ``positions`` (R, N) or (N,); those of position 0 say nothing."""
        if positions.ndim == 1 and positions.device.type == "cpu" and (run := self._run(positions)) is not None:
            return torch.einsum("rne,nke->rnk", hidden, self.lm_head[run]).float()
        heads = self.lm_head[(positions - 1).clamp(0, self.num_codebooks - 2)]
        if positions.ndim == 1:
            return torch.einsum("rne,nke->rnk", hidden, heads).float()
        return torch.einsum("rne,rnke->rnk", hidden, heads).float()


@dataclass(frozen=True)
class Reading:
    """A text made ready to be spoken.

    Attributes:
        prompt: Inputs (P, D) of the talker before the first step that it draws.
        track: What is added to the inputs of the first steps drawn (T, D); none where the text is in the prompt.
        behind: What is added to the inputs of steps behind the track (D,).
    """

    prompt: Tensor
    track: Tensor
    behind: Tensor

    def beside(self, steps: int) -> Tensor:
        """What is added to the inputs of ``steps`` steps drawn (steps, D)."""
        table = self.behind.repeat(steps, 1)
        count = min(steps, len(self.track))
        table[:count] = self.track[:count]
        return table


class SpeechTalker(StrictModelMixin, ConfigMixin):
    """Text to residual codes.

    Args:
        text_vocab_size, text_hidden_size: Size and width of the text embedding.
        num_codebooks, num_codes: Of a frame, and K.
        hidden_size, num_layers, num_heads, num_kv_heads, head_dim, intermediate_size: Of the talker.
        predictor_hidden_size, predictor_layers, ...: Of the code predictor.
        first_vocab_size: Tokens of code 0: the K codes, then special ones.
        pad_code, begin_code, end_code: Special tokens of code 0.
        pad_text: Text token that accompanies frames, and stands for silence around a text track.
        track_blocks: Blocks of the :class:`TextTrack`; 0 puts the text into the prompt, as Qwen3-TTS does.
        frame_stack: Frames of a step; G is then ``num_codebooks * frame_stack``, each place in the stack with embeddings
            and heads of its own.

    Raises:
        ValueError: If sizes do not fit.
    """

    @register_to_config
    def __init__(
        self,
        text_vocab_size: int = 33,
        text_hidden_size: int = 128,
        num_codebooks: int = 8,
        num_codes: int = 256,
        hidden_size: int = 256,
        num_layers: int = 5,
        num_heads: int = 4,
        num_kv_heads: int = 4,
        head_dim: int = 64,
        intermediate_size: int = 640,
        predictor_hidden_size: int = 160,
        predictor_layers: int = 4,
        predictor_heads: int = 4,
        predictor_kv_heads: int = 4,
        predictor_head_dim: int = 40,
        predictor_intermediate_size: int = 448,
        first_vocab_size: int = 259,
        pad_code: int = 256,
        begin_code: int = 257,
        end_code: int = 258,
        pad_text: int = 0,
        rope_theta: float = 10_000.0,
        norm_eps: float = 1e-6,
        track_blocks: int = 0,
        frame_stack: int = 1,
    ) -> None:
        super().__init__()
        specials = (pad_code, begin_code, end_code)
        if num_codebooks < 2 or not all(num_codes <= token < first_vocab_size for token in specials):
            raise ValueError(
                f"Special tokens {specials} must lie in [{num_codes}, {first_vocab_size}), and `num_codebooks` "
                f"({num_codebooks}) must be at least 2."
            )
        if frame_stack < 1:
            raise ValueError(f"`frame_stack` must be at least 1, got {frame_stack}.")
        shared = {"rope_theta": rope_theta, "norm_eps": norm_eps}
        sizes = StackSizes(
            hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_kv_heads,
            head_dim=head_dim, intermediate_size=intermediate_size, **shared,
        )  # fmt: skip
        inner = StackSizes(
            hidden_size=predictor_hidden_size, num_layers=predictor_layers, num_heads=predictor_heads,
            num_kv_heads=predictor_kv_heads, head_dim=predictor_head_dim,
            intermediate_size=predictor_intermediate_size, **shared,
        )  # fmt: skip
        self.text_embedding = nn.Embedding(text_vocab_size, text_hidden_size)
        self.text_projection = None if track_blocks else TextProjection(text_hidden_size, hidden_size)
        self.text_track = (
            TextTrack(text_vocab_size, text_hidden_size, hidden_size, track_blocks) if track_blocks else None
        )
        self.codec_embedding = nn.Embedding(first_vocab_size, hidden_size)
        self.stack = QwenStack(sizes)
        self.codec_head = nn.Linear(hidden_size, first_vocab_size, bias=False)
        self.code_predictor = CodePredictor(hidden_size, self.codes_per_step, num_codes, inner)

    @property
    def codes_per_step(self) -> int:
        """G, the codes that follow one call of the talker."""
        return int(self.config.num_codebooks * self.config.frame_stack)

    def get_output_embeddings(self) -> nn.Linear:
        """The head of code 0, by which drafters know their target."""
        return self.codec_head

    def text(self, tokens: Tensor) -> Tensor:
        """Projected embeddings (..., D) of text ``tokens`` (...), of a talker that reads them in its prompt."""
        assert self.text_projection is not None
        return self.text_projection(self.text_embedding(tokens))

    def read(self, tokens: Tensor, before: Tensor | None = None, heard: int = 0, speed: float = 1.0) -> Reading:
        """Make a text ready.

        Args:
            tokens: Its tokens (L,), behind those of the reference's text.
            before: Codes (F, G) of the F steps of a reference recording that the speech continues.
            heard: Tokens that are said in the reference.
            speed: Divides the durations; other values than 1 need a text track.

        Raises:
            ValueError: If the talker has no text track and ``speed`` is not 1.
        """
        begin = self.codec_embedding(tokens.new_tensor([self.config.begin_code]))
        recorded = begin if before is None else torch.cat([begin, self.frames(before[None])[0]])
        if self.text_track is None:
            if speed != 1.0:
                raise ValueError(f"`speed` is {speed}, but this talker has no text track that could be read faster.")
            pad = self.text(tokens.new_tensor([self.config.pad_text]))
            read = self.text(tokens) + self.codec_embedding(tokens.new_tensor([self.config.pad_code]))
            return Reading(torch.cat([read, recorded + pad]), pad[:0], pad[0])
        track = self._lay_out(tokens, len(recorded) - 1, heard, speed)
        return Reading(recorded + track[: len(recorded)], track[len(recorded) :], torch.zeros_like(track[0]))

    def _lay_out(self, tokens: Tensor, recorded: int, heard: int, speed: float) -> Tensor:
        """The track (T, D) of ``tokens`` (L,), the first ``heard`` of which fill ``recorded`` steps."""
        assert self.text_track is not None
        text = with_silence(tokens, self.config.pad_text)[None]
        states = self.text_track(self.text_embedding(text))
        durations = self.text_track.durations(text).exp().clamp_max(LONGEST)
        old, new = durations[:, : heard + 1], durations[:, heard + 1 :]
        rate = recorded / old.sum() if recorded else 1 / speed
        durations = torch.cat([old * rate, new / speed], dim=1)
        steps = int(durations.sum().ceil()) + 1
        return self.text_track.spread(states, durations, max(steps, recorded + 1))[0]

    def frames(self, codes: Tensor) -> Tensor:
        """Summed embeddings (R, T, D) of steps of ``codes`` (R, T, G)."""
        summed = self.codec_embedding(codes[..., 0])
        for book, embedding in enumerate(self.code_predictor.codec_embedding, start=1):
            summed = summed + embedding(codes[..., book])
        return summed

    def embed_codes(self, codes: Tensor, first: int) -> Tensor:
        """Embeddings (R, n, D) of single ``codes`` (R, n) of the books ``first``, ``first + 1``, ..."""
        if first:
            return self.code_predictor.embed(codes, first)
        parts = [self.codec_embedding(codes[:, :1])]
        if codes.shape[1] > 1:
            parts.append(self.code_predictor.embed(codes[:, 1:], 1))
        return torch.cat(parts, dim=1)

    def forward(self, inputs: Tensor, positions: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Talker states (R, N, D) for ``inputs`` (R, N, D) at ``positions``."""
        return self.stack(inputs, positions, mask, cache)


def with_silence(tokens: Tensor, silence: int) -> Tensor:
    """``tokens`` (L,) with a token of silence at either end (L + 2,)."""
    return torch.nn.functional.pad(tokens, (1, 1), value=silence)
