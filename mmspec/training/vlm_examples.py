"""Questions about pictures with the answers that a drafter learns from: the target's own, or those of a corpus.

What a drafter has to guess is what its target writes, so by default the target answers, speculatively and greedily.
Answers are kept in the run folder in chunks; what is there is not asked again.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.vlm_tasks import TASKS, Material, draw_sample, held_out_samples
from mmspec.vlm.adapters.base import EncodedPrompt
from mmspec.vlm.items import Item
from mmspec.vlm.prompts import processor_inputs, questions_of_prompts


@dataclass(frozen=True)
class Example:
    """One question with the tokens of its answer, the ending token included."""

    item: Item
    answer: tuple[int, ...]

    def encode(self, pipe: VisionLanguagePipeline) -> tuple[EncodedPrompt, int]:
        """Prompt and answer as the target reads them, and the slot at which the answer begins."""
        [question] = questions_of_prompts(pipe.processor, [self.item.prompt], [list(self.item.images)])
        inputs = processor_inputs(pipe.processor, question)
        begin = inputs["input_ids"].shape[1]
        ids = torch.cat([inputs["input_ids"], torch.tensor([self.answer])], dim=1)
        own = {key: value for key, value in inputs.items() if not key.endswith(("attention_mask", "token_type_ids"))}
        if "pixel_attention_mask" in inputs:
            own["pixel_attention_mask"] = inputs["pixel_attention_mask"]
        return pipe.adapter.encode(own | {"input_ids": ids}), begin


def embedded_items(material: Material, count: int, shares: tuple[float, ...], seed: int) -> list[Item]:
    """``count`` questions as the embedded model was trained on, in ``shares`` of its tasks."""
    samples = [draw_sample(material, shares, random.Random(f"drafter-{seed}-{number}")) for number in range(count)]
    return [Item(sample.question, (sample.picture,), sample.answer, sample.task) for sample in samples]


def held_out_items(material: Material, count: int) -> dict[str, list[Item]]:
    """``count`` questions of each task that neither target nor drafter has seen."""
    return {
        task: [
            Item(s.question, (s.picture,), s.answer, s.task) for s in held_out_samples(material, task, count, seed=7)
        ]
        for task in TASKS
    }


def corpus_examples(pipe: VisionLanguagePipeline, items: list[Item], noise: float, seed: int) -> list[Example]:
    """Examples with the answers of the corpus.

    Args:
        noise: Part of their tokens that are replaced by others that occur in answers, for a corpus that the target would
            not write.

    Raises:
        ValueError: If an item has no answer.
    """
    if any(item.answer is None for item in items):
        raise ValueError("`answers` 'corpus' needs an `answer` for every question.")
    encode = pipe.processor.tokenizer.encode
    stop = pipe.stop_tokens()[:1]
    rows = [[*encode(item.answer, add_special_tokens=False), *stop] for item in items]
    known = sorted({token for row in rows for token in row} - set(stop))
    rng = random.Random(f"noise-{seed}")
    spoilt = [[rng.choice(known) if t not in stop and rng.random() < noise else t for t in row] for row in rows]
    return [Example(item, tuple(row)) for item, row in zip(items, spoilt, strict=True)]


def target_examples(
    pipe: VisionLanguagePipeline, items: list[Item], folder: Path, max_new_tokens: int, seed: int, chunk_size: int = 64
) -> list[Example]:
    """Examples with the target's own greedy answers; those that ``folder`` holds already are read.

    Raises:
        ValueError: If ``folder`` holds answers to other questions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    examples: list[Example] = []
    for first in tqdm(range(0, len(items), chunk_size), desc="answers"):
        asked = items[first : first + chunk_size]
        path = folder / f"{first:06d}.json"
        prompts = [item.prompt for item in asked]
        if not path.is_file():
            output = pipe(
                prompts, [list(item.images) for item in asked], max_new_tokens=max_new_tokens, seed=seed,
                output_type="tokens",
            )  # fmt: skip
            partial = path.with_suffix(".tmp")
            partial.write_text(json.dumps({"prompts": prompts, "answers": output.tokens}))
            partial.replace(path)  # a kill leaves whole files only
        content = json.loads(path.read_text())
        if content["prompts"] != prompts:
            raise ValueError(f"{path} holds answers to other questions; choose another output folder.")
        examples += [Example(item, tuple(row)) for item, row in zip(asked, content["answers"], strict=True)]
    return examples
