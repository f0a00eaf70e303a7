"""CSM behind the target of residual codes: a backbone, a depth decoder, codes of Mimi.

Sesame, 2025, "Crossing the uncanny valley of conversational voice"; transformers' ``CsmForConditionalGeneration``. Speech ends with a frame whose
codes, but for the last, are all the end code: that is known when the frame is finished, so the token behind it is forced to be
a mark of the end that the model itself does not have.

Traps of the class: position 0 of the depth decoder holds the backbone's state; heads are numbered from code 1;
``position_ids`` are ignored, positions always follow the cache.

Symbols: B rows, b rows of a call, G codes a frame, V tokens (the codes and the mark), D and E widths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import CsmForConditionalGeneration, DynamicCache

from mmspec.speech.transformers_frames import TransformersFrames, cache_argument


class CsmFrames(TransformersFrames):
    """A :class:`mmspec.speech.frame_model.FrameModel` over CSM.

    Args:
        network: The model.
        prompts: Embedded prompt of each row (L_b, D), see :func:`embed_csm_prompt`.
        max_frames: Frames that a row may have.
        num_codes: Codes that may be drawn, if the codec has fewer than the model; ``None`` for all of the model's.
    """

    def __init__(
        self,
        network: CsmForConditionalGeneration,
        prompts: Sequence[Tensor],
        max_frames: int,
        num_codes: int | None = None,
    ) -> None:
        super().__init__(network, network.backbone_model, network.config.num_hidden_layers, prompts, max_frames)
        self.num_codebooks = network.config.num_codebooks
        self.codes = network.config.vocab_size
        self.drawable = self.codes if num_codes is None else num_codes
        self.vocab_size = self.codes + 1
        self.end = self.codes
        """Token of the loop that marks the end."""
        self.depth = network.depth_decoder
        self._inner_argument = cache_argument(self.depth.model)

    def allowed(self) -> Tensor:
        tokens = torch.arange(self.vocab_size, device=self.device)
        codes = tokens < self.drawable
        return torch.stack([codes | (tokens == self.end), codes])

    def first_logits(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.pad(self.network.lm_head(hidden), (0, 1), value=-torch.inf)

    def embed_frames(self, codes: Tensor, rows: Sequence[int]) -> Tensor:
        return self.network.backbone_model.embed_tokens(codes[:, None])[:, 0]

    def after(self, codes: Tensor, logits: Tensor) -> Tensor:
        over = (codes[:, :-1] == self.network.config.codebook_eos_token_id).all(-1)
        mark = torch.full_like(logits, -torch.inf).index_fill(1, torch.tensor([self.end], device=self.device), 0.0)
        return torch.where(over[:, None], mark, logits)

    def inner_inputs(self, states: Tensor | None, codes: Tensor, first: int) -> Tensor:
        books = first + torch.arange(codes.shape[1], device=codes.device)
        # a draft token that is no code is never accepted; it only needs some embedding
        embedded = self.depth.model.embed_tokens(codes.clamp_max(self.codes - 1) + books * self.codes)
        return embedded if states is None else torch.cat([states[:, None], embedded], dim=1)

    def run_inner(self, inputs: Tensor, states: Tensor, cache: DynamicCache | None) -> Tensor:
        output = self.depth.model(
            inputs_embeds=inputs, use_cache=cache is not None, **{self._inner_argument: cache}
        )  # fmt: skip
        return output.last_hidden_state

    def head_weights(self) -> Tensor:
        return self.depth.codebooks_head.weight.transpose(1, 2)

    def start_state(self, states: Tensor) -> Tensor:
        projected = self.depth.model.inputs_embeds_projector(states)
        return torch.nn.functional.rms_norm(projected, projected.shape[-1:])

    def code_table(self) -> Tensor:
        weights = self.depth.model.embed_tokens.weight.view(-1, self.codes, self.depth.config.backbone_hidden_size)
        return self.depth.model.inputs_embeds_projector(weights[: self.num_codebooks])


def embed_csm_prompt(
    network: CsmForConditionalGeneration, input_ids: Tensor, audio: Tensor | None = None, ends: Tensor | None = None
) -> Tensor:
    """Embedded prompt (L, D) of one row.

    Args:
        input_ids: Tokens (L,) of the processor, audio placeholders included.
        audio: Reference recordings one after the other (1, n) at the codec's rate, with ``ends`` (k,), where each ends.
    """
    given = None if audio is None else audio[None]
    cutoffs = None if ends is None else ends[None]
    merged = network._merge_input_ids_with_input_values(input_ids[None], given, cutoffs)
    assert merged is not None
    return merged["inputs_embeds"][0]


def encode_csm_audio(network: CsmForConditionalGeneration, samples: Tensor) -> Tensor:
    """Codes (T, G) of a recording (n,) at the codec's rate."""
    given = samples.to(network.device, network.dtype)[None, None]
    codes: Tensor = network.codec_model.encode(given).audio_codes[0].T
    return codes[:, : network.config.num_codebooks]


def embed_csm_codes(network: CsmForConditionalGeneration, input_ids: Tensor, codes: Sequence[Tensor]) -> Tensor:
    """Embedded prompt (L, D) of one row, as :func:`embed_csm_prompt`, from recordings that are encoded already.

    Args:
        input_ids: Tokens (L,) with one placeholder for each frame of the recordings.
        codes: Frames (T, G) of each recording.
    """
    embedded = network.embed_text_tokens(input_ids)
    if codes:
        table, config = network.backbone_model.embed_tokens, network.config
        frames = torch.cat(list(codes))
        end = torch.full_like(frames[:1], config.codebook_eos_token_id)
        embedded[input_ids == config.audio_token_id] = table(frames[None])[0]
        embedded[input_ids == config.audio_eos_token_id] = table(end[None])[0]
    return embedded
