"""Training documents of the talker: prompts in a row, packed several to a row of the batch.

A document is one to a few recordings after one another with their joined texts, so that the talker learns to read words in
an order that was never recorded. Documents of a row do not see one another.

Symbols: R rows, N tokens, G codes a frame, M frames that the code predictor is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.speech.speakable import ALPHABET
from mmspec.training.tts_data import Recording

TOKENS = {character: index + 1 for index, character in enumerate(ALPHABET)}
"""Text token of each character; 0 accompanies frames."""


@dataclass(frozen=True)
class Spoken:
    """A recording as the talker sees it: text tokens (L,) and codes (T, G)."""

    text: str
    codes: Tensor


@dataclass
class Packed:
    """Documents in rows.

    Attributes:
        text: Text token of each place (R, N), 0 for frames, the start of speech and padding.
        codes: Codes (R, N, G) of frames; elsewhere the first one is a special code and the rest are 0.
        is_frame: Places that hold frames (R, N).
        document: Number of the document (R, N), -1 for padding.
        position: Place within the document (R, N).
        target: Code 0 or the end that follows each place (R, N), -100 where there is none.
    """

    text: Tensor
    codes: Tensor
    is_frame: Tensor
    document: Tensor
    position: Tensor
    target: Tensor

    @property
    def mask(self) -> Tensor:
        """Allowed pairs (R, 1, N, N): earlier places of the same document; padding sees itself."""
        size = self.text.shape[1]
        same = self.document[:, :, None] == self.document[:, None, :]
        return (same & torch.ones(size, size, dtype=torch.bool).tril())[:, None]


def encode_text(text: str) -> Tensor:
    """Tokens (L,) of a speakable text."""
    return torch.tensor([TOKENS[character] for character in text])


def join_texts(texts: list[str]) -> str:
    """One text from several, with a pause where none was written."""
    joined = texts[0]
    for text in texts[1:]:
        joined += (" " if joined[-1] in ".," else ", ") + text
    return joined


def spoken(recordings: list[Recording], codes: list[Tensor]) -> list[Spoken]:
    """Recordings with their codes."""
    return [Spoken(recording.text, own) for recording, own in zip(recordings, codes, strict=True)]


def draw_documents(material: list[Spoken], frames: int, longest: int, generator: torch.Generator) -> list[Spoken]:
    """Documents of about ``frames`` frames in all; two in three are single recordings, others join up to four."""
    documents: list[Spoken] = []
    total = 0
    while total < frames:
        wanted = (
            1
            if float(torch.rand((), generator=generator)) < 0.6
            else int(torch.randint(2, 5, (), generator=generator))
        )
        picks = torch.randint(len(material), (wanted,), generator=generator).tolist()
        parts = [material[picks[0]]]
        for pick in picks[1:]:
            if sum(len(part.codes) for part in parts) + len(material[pick].codes) <= longest:
                parts.append(material[pick])
        document = Spoken(join_texts([part.text for part in parts]), torch.cat([part.codes for part in parts]))
        documents.append(document)
        total += len(document.codes)
    return documents


def pack(documents: list[Spoken], width: int, specials: tuple[int, int, int]) -> Packed:
    """Put documents into rows of at least ``width`` places; ``specials`` are the codes pad, begin and end."""
    pad, begin, end = specials
    rows: list[list[Spoken]] = []
    room: list[int] = []
    width = max(width, *(len(d.text) + 1 + len(d.codes) for d in documents))
    for document in sorted(documents, key=lambda d: -len(d.codes)):
        size = len(document.text) + 1 + len(document.codes)
        place = next((i for i, left in enumerate(room) if left >= size), None)
        if place is None:
            rows.append([])
            room.append(width)
            place = len(rows) - 1
        rows[place].append(document)
        room[place] -= size
    books = documents[0].codes.shape[1]
    shape = (len(rows), width)
    packed = Packed(
        text=torch.zeros(shape, dtype=torch.long), codes=torch.zeros(*shape, books, dtype=torch.long),
        is_frame=torch.zeros(shape, dtype=torch.bool), document=torch.full(shape, -1),
        position=torch.zeros(shape, dtype=torch.long), target=torch.full(shape, -100),
    )  # fmt: skip
    packed.codes[..., 0] = pad
    for row, content in enumerate(rows):
        start = 0
        for number, document in enumerate(content):
            speech = start + len(document.text)
            stop = speech + 1 + len(document.codes)
            packed.text[row, start:speech] = encode_text(document.text)
            packed.codes[row, speech, 0] = begin
            packed.codes[row, speech + 1 : stop] = document.codes
            packed.is_frame[row, speech + 1 : stop] = True
            packed.document[row, start:stop] = number
            packed.position[row, start:stop] = torch.arange(stop - start)
            packed.target[row, speech : stop - 1] = document.codes[:, 0]
            packed.target[row, stop - 1] = end
            start = stop
    return packed
