"""A model of your own behind the decoding loop: network, adapter and pipeline of a very small picture model.

A picture is a grid of colours; the network reads a class and the colours so far and predicts the next one. Its weights
here are random: the example shows how the parts fit, not how to train them.

Try it as it is, or make it part of mmspec: docs/guides/new-model.md.

Symbols: B samples, R model rows (B, twice that with guidance), N nodes, S cache slots, D width, H heads, V colours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from einops import rearrange
from PIL import Image
from torch import Tensor, nn

from mmspec import JacobiDrafter
from mmspec.acceptance.base import Acceptance
from mmspec.core.guidance import Guidance
from mmspec.core.sampling import SamplingParams
from mmspec.core.stopping import Stopping
from mmspec.core.target import TargetOutput
from mmspec.drafters.base import Drafter
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.outputs import ImageOutput
from mmspec.pipelines.seeds import row_seeds
from mmspec.runner.cache import SpecCache
from mmspec.runner.runner import Prompt


class PixelBlock(nn.Module):
    """Attention over the cache, and a feed-forward part."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor, mask: Tensor, cache: SpecCache, layer: int) -> Tensor:
        split = rearrange(self.joint(self.norm(states)), "r n (kind h p) -> kind r h n p", kind=3, h=self.num_heads)
        query, key, value = split.unbind(0)
        # the cache stores the new keys and values and returns all that the forward may see
        key, value = cache.update(key, value, layer)
        read = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        states = states + self.out(rearrange(read, "r h n p -> r n (h p)"))
        return states + self.feed(self.feed_norm(states))


class PixelTransformer(ModelMixin, ConfigMixin):
    """A decoder over a grid of colours, conditioned on a class.

    Args:
        vocab_size, num_classes, grid: Colours, classes, and cells along a side.
        width, num_layers, num_heads: Sizes of the network.
    """

    @register_to_config
    def __init__(
        self, vocab_size: int = 16, num_classes: int = 4, grid: int = 8, width: int = 32, num_layers: int = 2,
        num_heads: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.classes, self.colours = nn.Embedding(num_classes, width), nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(grid * grid + 1, width)
        self.blocks = nn.ModuleList(PixelBlock(width, num_heads) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)

    def forward(self, inputs: Tensor, position_ids: Tensor, mask: Tensor, cache: SpecCache, prompt: bool) -> Tensor:
        """Logits (R, N, V) behind ``inputs`` (R, N): classes in the ``prompt``, colours after it."""
        states = (self.classes if prompt else self.colours)(inputs) + self.positions(position_ids)
        for layer, block in enumerate(self.blocks):
            states = block(states, mask, cache, layer)
        return self.head(self.norm(states)).float()


class PixelModel:
    """The adapter: a :class:`mmspec.runner.runner.DecoderModel` over :class:`PixelTransformer` and its prompts.

    Args:
        network: The decoder.
        labels: Class of every model row (R,).
        device: Where to run.
    """

    def __init__(self, network: PixelTransformer, labels: Tensor, device: torch.device) -> None:
        self.network, self.labels = network, labels.to(device)
        self.device, self.dtype = device, network.dtype
        self.vocab_size: int = network.config.vocab_size
        self.max_position: int = network.config.grid**2
        zeros = torch.zeros_like(self.labels)
        # one slot a prompt, no padding: the class stands at position 0 and the first colour follows at 1
        self.prompt = Prompt(width=1, start=zeros, length=zeros + 1, position_offset=zeros)

    def prefill(self, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return TargetOutput(self.network(self.labels[:, None], position_ids, mask, cache, True))

    def decode(self, tokens: Tensor, cache: SpecCache, position_ids: Tensor, mask: Tensor) -> TargetOutput:
        return TargetOutput(self.network(tokens, position_ids, mask, cache, False))

    def select_rows(self, rows: Tensor) -> None:
        self.labels, self.prompt = self.labels[rows], self.prompt.rows(rows)


class PixelPipeline(SpecPipeline):
    """Pictures by class.

    Args:
        transformer: The decoder.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
    """

    model_cpu_offload_seq = "transformer"

    def __init__(
        self, transformer: PixelTransformer, drafter: Drafter | None = None, acceptance: Acceptance | None = None
    ) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, drafter=drafter, acceptance=acceptance)

    @torch.no_grad()
    def __call__(
        self,
        class_labels: Sequence[int],
        *,
        temperature: float = 1.0,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
    ) -> ImageOutput:
        """Draw one picture for each of ``class_labels``."""
        labels = torch.tensor(class_labels)
        sampling = SamplingParams(temperature)
        drafter, rule = self.choose_method(speculate, sampling)
        config = self.transformer.config
        request = DecodeRequest(
            model=lambda network, device: PixelModel(network, labels, device),
            network=self.transformer,
            seeds=row_seeds(len(labels), generator, seed),
            sampling=sampling,
            stopping=Stopping(config.grid**2, fixed_length=True),
            guidance=Guidance(),
            drafter=drafter,
            rule=rule,
            row_length=config.grid,  # drafters that know grids may use it
            cache_bytes_per_slot=2 * config.num_layers * config.width * self.transformer.dtype.itemsize,
        )
        for current, latest in self.run_decoders([request]):
            decoder, progress = current, latest
        tokens = progress.tokens.cpu()
        self.maybe_free_model_hooks()
        return ImageOutput(images=self._pictures(tokens), tokens=tokens, stats=decoder.stats)

    def _pictures(self, tokens: Tensor) -> list[Image.Image]:
        config = self.transformer.config
        grey = (tokens * 255 // (config.vocab_size - 1)).to(torch.uint8).view(-1, config.grid, config.grid)
        return [Image.fromarray(picture.numpy()) for picture in grey]


def main(folder: Path) -> None:
    """Decode plainly and speculatively, alone and in a batch; save the pipeline in ``folder`` and load it again."""
    torch.manual_seed(0)
    pipe = PixelPipeline(PixelTransformer().eval(), drafter=JacobiDrafter(window=8, controller="fixed"))
    pipe.set_progress_bar_config(disable=True)
    drafted, plain = pipe([0, 1, 2], seed=7), pipe([0, 1, 2], seed=7, speculate=False)
    assert torch.equal(drafted.tokens, plain.tokens)  # the same tokens, whatever the drafter
    assert torch.equal(pipe([2], seed=9).tokens[0], plain.tokens[2])  # a row depends on its own seed and class only
    print(drafted.stats, plain.stats, sep="\n")

    pipe.save_pretrained(folder)
    again = PixelTransformer.from_pretrained(folder / "transformer")
    reloaded = PixelPipeline(again, drafter=JacobiDrafter.from_pretrained(folder / "drafter"))
    reloaded.set_progress_bar_config(disable=True)
    assert torch.equal(reloaded([0, 1, 2], seed=7).tokens, plain.tokens)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
