"""The residual codes of a frame in a few parallel steps instead of one after the other.

Chang et al., 2022, "MaskGIT: Masked Generative Image Transformer", for the codes behind a talker's state as in NVIDIA's MagpieTTS: a network
without causality sees the state, code 0 and the codes that are known, the others being masked, and guesses all of them. After
step s of S,

    floor(N cos(pi s / 2 S))

of the N residual codes, those drawn with the least confidence, are masked again. The confidence of a code is the log-probability that
the network gives it plus Gumbel noise that fades with the steps. The law of the codes is the network's own, not that of the code
predictor.

Symbols: b rows, G codes a step of the talker, N = G - 1 residual ones, K codes of a book, V tokens, D talker width, E width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import draw
from mmspec.drafters.fingerprint import check_fingerprint
from mmspec.models.strict import StrictModelMixin
from mmspec.speech.code_sampling import CodeLaw
from mmspec.speech.qwen_layers import QwenStack, StackSizes


class MaskPredictor(StrictModelMixin, ConfigMixin):
    """Guesses the masked residual codes of a frame.

    Args:
        num_codebooks, num_codes: G and K.
        input_width: D.
        hidden_size, num_layers, num_heads, intermediate_size: Of the layers.
        order_noise: Scale of the noise on confidences; 0 always keeps the most likely codes.
        target: Fingerprint of the talker that it was made for, see :mod:`mmspec.drafters.fingerprint`; ``None`` checks
            sizes only.

    Raises:
        ValueError: If sizes do not fit.
    """

    @register_to_config
    def __init__(
        self,
        num_codebooks: int = 8,
        num_codes: int = 256,
        input_width: int = 192,
        hidden_size: int = 128,
        num_layers: int = 3,
        num_heads: int = 4,
        intermediate_size: int = 384,
        order_noise: float = 1.0,
        target: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if num_codebooks < 2 or num_codes < 2 or hidden_size % num_heads or order_noise < 0:
            raise ValueError(
                f"`num_codebooks` ({num_codebooks}) and `num_codes` ({num_codes}) must be at least 2, `hidden_size` "
                f"({hidden_size}) a multiple of `num_heads` ({num_heads}), and `order_noise` ({order_noise}) at least 0."
            )
        sizes = StackSizes(
            hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads, intermediate_size=intermediate_size,
        )  # fmt: skip
        self.from_state = nn.Linear(input_width, hidden_size)
        self.embedding = nn.ModuleList(nn.Embedding(num_codes, hidden_size) for _ in range(num_codebooks))
        self.unknown = nn.Parameter(torch.empty(num_codebooks - 1, hidden_size))
        self.stack = QwenStack(sizes)
        self.heads = nn.Parameter(torch.empty(num_codebooks - 1, num_codes, hidden_size))
        for parameter in (self.unknown, self.heads):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, states: Tensor, codes: Tensor, masked: Tensor) -> Tensor:
        """Float32 logits (b, N, K) of all residual codes.

        Args:
            states: Talker states (b, D) that the frames are drawn from.
            codes: Codes (b, G), of which those that are masked say nothing.
            masked: Residual codes that are not known (b, N), boolean.
        """
        embedded = torch.stack([book(codes[:, place]) for place, book in enumerate(self.embedding)], dim=1)
        slots = torch.where(masked[..., None], self.unknown, embedded[:, 1:])
        x = torch.cat([self.from_state(states)[:, None], embedded[:, :1], slots], dim=1)
        size = x.shape[1]
        everything = torch.ones(size, size, dtype=torch.bool, device=x.device)
        hidden = self.stack(x, torch.arange(size, device=x.device)[None], everything)[:, 2:]
        return torch.einsum("bne,nke->bnk", hidden, self.heads).float()

    def check_target(self, talker: Any) -> None:
        """Raise ValueError if this network was made for another ``talker``."""
        own = (self.config.num_codebooks, self.config.num_codes, self.config.input_width)
        if own != (theirs := (talker.codes_per_step, talker.config.num_codes, talker.config.hidden_size)):
            raise ValueError(
                f"`mask_predictor` has {own} (codes a step, codes a book, width), but the talker {theirs}."
            )
        if self.config.target is not None:
            check_fingerprint(self.config.target, talker, "mask_predictor")

    def fill(self, states: Tensor, first: Tensor, law: CodeLaw, noise: RowNoise, place: int, steps: int) -> Tensor:
        """Draw the residual codes (b, N) of a frame.

        Args:
            states: Talker states (b, D).
            first: Code 0 (b,).
            law: How residual codes are drawn from logits over its V tokens.
            noise: Of the rows; what is used of it depends on nothing but the seed, ``place`` and the step.
            place: Order index of code 0.
            steps: S, see :func:`masks_left`.
        """
        slots = self.config.num_codebooks - 1
        codes = F.pad(first[:, None], (0, slots))
        masked = torch.ones(len(codes), slots, dtype=torch.bool, device=codes.device)
        books = torch.arange(1, slots + 1, device=codes.device).expand(len(codes), -1)
        for step, left in enumerate(masks_left(slots, steps), start=1):
            logits = self(states, codes, masked)
            keys = (place + books) * steps + step - 1
            scores = law.rest(F.pad(logits, (0, law.vocab_size - logits.shape[-1]), value=-torch.inf), books)
            drawn = draw(scores, noise.gumbel(Stream.AUXILIARY, keys))
            codes[:, 1:] = torch.where(masked, drawn, codes[:, 1:])
            if left:
                sure = logits.log_softmax(-1).gather(-1, drawn[..., None])[..., 0]
                gumbel = -(-noise.uniform(Stream.ACCEPT, keys).log()).log().float()
                sure = sure + self.config.order_noise * (1 - step / steps) * gumbel
                sure = sure.masked_fill(~masked, torch.inf)  # what is known stays known
                least = sure.argsort(dim=-1, stable=True)[:, :left]
                masked = torch.zeros_like(masked).scatter_(1, least, True)
        return codes[:, 1:]


def masks_left(slots: int, steps: int) -> list[int]:
    """How many of ``slots`` codes are still masked after each of ``steps`` steps; each step makes at least one known.

    Raises:
        ValueError: If ``steps`` does not lie between 1 and ``slots``.
    """
    if not 1 <= steps <= slots:
        raise ValueError(f"`depth_steps` must lie between 1 and the {slots} residual codes of a step, got {steps}.")
    left: list[int] = []
    for step in range(1, steps + 1):
        cosine = math.floor(slots * math.cos(math.pi / 2 * step / steps))
        left.append(max(steps - step, min((left[-1] if left else slots) - 1, cosine)))
    return left
