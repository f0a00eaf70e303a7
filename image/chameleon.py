"""How Chameleon's descendants spell a picture: their structural tokens, sizes and recommended settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ChameleonStyle:
    """Settings that the authors of a descendant use."""

    guidance_scale: float
    temperature: float
    top_k: int
    top_p: float


STYLES: dict[str, ChameleonStyle] = {
    "anole": ChameleonStyle(3.0, 0.7, 0, 0.9),
    "lumina": ChameleonStyle(4.0, 1.0, 2000, 1.0),
}

#: how released checkpoints spell pictures, and the side of their square one; their configurations do not say
RELEASED: dict[str, tuple[str, int]] = {
    "leloy/Anole-7b-v0.1-hf": ("anole", 512),
    "Alpha-VLLM/Lumina-mGPT-7B-512": ("lumina", 512),
    "Alpha-VLLM/Lumina-mGPT-7B-768": ("lumina", 768),
    "Alpha-VLLM/Lumina-mGPT-7B-768-Omni": ("lumina", 768),
    "Alpha-VLLM/Lumina-mGPT-7B-1024": ("lumina", 1024),
    "Alpha-VLLM/Lumina-mGPT-34B-512": ("lumina", 512),
}

_NAMES = {
    "separator": "<reserved08706>",
    "begin_of_image": "<racm3:break>",
    "end_of_image": "<eoss>",
    "new_line": "<reserved08799>",
}


@dataclass(frozen=True)
class ChameleonVocabulary:
    """Token ids of Chameleon's vocabulary that spell a picture.

    Attributes:
        names: The whole vocabulary, by name.
        begin: Begin of sequence.
        separator: End of a turn.
        begin_of_image, end_of_image: Around a picture.
        new_line: Lumina-mGPT's row end.
    """

    names: Mapping[str, int]
    begin: int
    separator: int
    begin_of_image: int
    end_of_image: int
    new_line: int

    @classmethod
    def of(cls, names: Mapping[str, int] | None, begin: int | None, num_codes: int) -> ChameleonVocabulary:
        """Read the tokens off a model's vocabulary.

        Raises:
            ValueError: If some are absent, or there are not ``num_codes`` image tokens.
        """
        names = names or {}
        absent = [name for name in _NAMES.values() if name not in names]
        if absent or begin is None:
            raise ValueError(f"`model` has no vocabulary to spell pictures: {', '.join(absent) or 'begin'} is absent.")
        if (found := sum(name.startswith("IMGIMG") for name in names)) != num_codes:
            raise ValueError(f"`model` has {found} image tokens for {num_codes} codes.")
        return cls(names, begin, **{key: names[name] for key, name in _NAMES.items()})

    def size(self, patches: int) -> int:
        """Lumina-mGPT's token of a side of ``patches``.

        Raises:
            ValueError: If the vocabulary has none.
        """
        name = f"<reserved{8800 + patches:05d}>"
        if name not in self.names:
            raise ValueError(f"`model` has no token {name} for a side of {patches} patches.")
        return self.names[name]


def lumina_sizes(area: int, longest: float = 4.0) -> list[tuple[int, int]]:
    """Rows and columns, in patches, of the pictures that Lumina-mGPT was trained on.

    They are the corners of the staircase under the hyperbola ``rows * columns = area``: neither side can grow without
    leaving it, or one side has just shrunk.

    Args:
        area: Patches of the square picture.
        longest: Largest ratio of the sides.
    """
    sizes = [
        (rows, columns)
        for columns in range(area, 0, -1)
        for rows in range(max(area // (columns + 1), 1), area // columns + 1)
    ]
    return [(rows, columns) for rows, columns in sizes if max(rows, columns) <= longest * min(rows, columns)]
