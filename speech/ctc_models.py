"""Any CTC model of transformers as a drafter: audio to posterior, one clip at a time.

Clips are never padded, since most encoders let padding leak into the neighbouring frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.models.transformers_loading import load_transformers_model
from mmspec.speech.ctc import Posterior
from mmspec.speech.vocabulary import CharacterVocabulary, CTCVocabulary, TokenizerVocabulary


class CTCModel:
    """A ``*ForCTC`` model with its features and the meaning of its labels.

    Args:
        model: The network; its blank is ``config.pad_token_id``.
        processor: A processor or feature extractor of transformers.
        tokenizer: The meaning of the labels; by default the processor's tokenizer.

    Raises:
        ValueError: If features or tokenizer are missing, or the tokenizer does not know all labels.
    """

    def __init__(self, model: Any, processor: Any, tokenizer: Any = None) -> None:
        self.model, self.processor = model, processor
        self.tokenizer: Any = getattr(processor, "tokenizer", None) if tokenizer is None else tokenizer
        if processor is None or self.tokenizer is None:
            raise ValueError("A CTC model needs its `processor`, or its feature extractor and its `tokenizer`.")
        self.extractor: Any = getattr(processor, "feature_extractor", None) or processor
        self.vocabulary = label_vocabulary(self.tokenizer, model.config.vocab_size, model.config.pad_token_id)

    @property
    def sampling_rate(self) -> int:
        return int(self.extractor.sampling_rate)

    @torch.no_grad()
    def posterior(self, samples: Tensor) -> Posterior:
        """Posterior of one clip of ``samples`` (n,) at :attr:`sampling_rate`."""
        features = self.extractor(samples.numpy(), sampling_rate=self.sampling_rate, return_tensors="pt")
        place = next(self.model.parameters())
        inputs = {
            name: value.to(place.device, place.dtype if value.is_floating_point() else value.dtype)
            for name, value in features.items()
            if name in ("input_features", "input_values", "attention_mask")
        }
        log_probs = self.model(**inputs).logits[0].float().log_softmax(-1).cpu()
        seconds = len(samples) / self.sampling_rate
        return Posterior(log_probs, self.model.config.pad_token_id, seconds / max(1, len(log_probs)))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model, features and tokenizer to ``folder``."""
        parts: list[Any] = [self.model, self.extractor, self.tokenizer]
        for part in parts:
            part.save_pretrained(folder)

    @classmethod
    def from_pretrained(cls, folder: Path) -> CTCModel:
        """Load what :meth:`save_pretrained` wrote.

        Raises:
            ValueError: If a tensor is missing or superfluous.
        """
        import transformers

        return cls(
            load_transformers_model(folder),
            transformers.AutoFeatureExtractor.from_pretrained(folder),
            transformers.AutoTokenizer.from_pretrained(folder),
        )


def label_vocabulary(tokenizer: Any, num_labels: int, blank: int) -> CTCVocabulary:
    """Vocabulary of a CTC head whose labels are tokens of ``tokenizer``: characters where every token is one.

    Raises:
        ValueError: If the tokenizer has fewer tokens than there are labels besides the blank.
    """
    tokens = _tokens(tokenizer, num_labels)
    if unknown := [label for label, token in enumerate(tokens) if token is None and label != blank]:
        raise ValueError(
            f"The CTC head has {num_labels} labels, but the tokenizer has no token {unknown[0]}; "
            "load the tokenizer that belongs to the model."
        )
    special = {int(token) for token in tokenizer.all_special_ids} | {blank}
    delimiter = getattr(tokenizer, "word_delimiter_token", None)
    texts = [
        "" if token is None else " " if token == delimiter else "" if i in special else token
        for i, token in enumerate(tokens)
    ]
    if max(map(len, texts)) <= 1:
        return CharacterVocabulary(texts, blank)
    return TokenizerVocabulary(tokenizer, blank)


def _tokens(tokenizer: Any, num_labels: int) -> Sequence[str | None]:
    known = {int(index): token for token, index in tokenizer.get_vocab().items()}
    return [known.get(label) for label in range(num_labels)]
