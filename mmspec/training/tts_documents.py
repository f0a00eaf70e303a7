"""Training documents of the talker: prompts in a row, packed several to a row of the batch.

A document is one to a few recordings after one another with their joined texts, so that the talker learns to read words in
an order that was never recorded. Documents of a row do not see one another. A frame here is what the talker draws in one step: with frame stacking,
several frames of the codec.

Symbols: R rows, N places, G codes a step, C documents, L characters of the longest text and the silence around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.speech.utterances import text_tokens
from mmspec.training.tts_data import Recording

_KNOT = 8.0  # frames


@dataclass(frozen=True)
class Spoken:
    """A recording as the talker sees it.

    Attributes:
        text: What is said.
        codes: Codes (T, G).
        durations: Frames that silence, each character, and silence last (L,), T in all but for the filling of the last frame.
    """

    text: str
    codes: Tensor
    durations: Tensor


@dataclass
class Packed:
    """Documents in rows.

    Attributes:
        text: Characters of each document (C, L), silence included; 0 for padding.
        durations: Frames that they last (C, L), 0 for padding.
        present: Characters that are no padding (C, L).
        codes: Codes (R, N, G) of frames; elsewhere the first one is a special code and the rest are 0.
        is_frame: Places that hold frames (R, N).
        document: Number of the document (R, N), -1 for padding.
        position: Place within the document (R, N), 0 for the start of speech.
        target: Code 0 or the end that follows each place (R, N), -100 where there is none.
    """

    text: Tensor
    durations: Tensor
    present: Tensor
    codes: Tensor
    is_frame: Tensor
    document: Tensor
    position: Tensor
    target: Tensor

    @property
    def mask(self) -> Tensor:
        """Allowed pairs (R, 1, N, N): earlier places of the same document; padding sees itself."""
        size = self.document.shape[1]
        same = self.document[:, :, None] == self.document[:, None, :]
        return (same & torch.ones(size, size, dtype=torch.bool).tril())[:, None]


def join(parts: list[Spoken]) -> Spoken:
    """One document from several, with a pause in the text where none was written; the silence between them belongs to it."""
    text, durations = parts[0].text, parts[0].durations
    frames = len(parts[0].codes)
    for part in parts[1:]:
        pause = " " if text[-1] in ".," else ", "
        silence = torch.zeros(len(pause))
        silence[-1] = frames - durations[:-1].sum() + part.durations[0]
        text += pause + part.text
        durations = torch.cat([durations[:-1], silence, part.durations[1:]])
        frames += len(part.codes)
    return Spoken(text, torch.cat([part.codes for part in parts]), durations)


def spoken(
    recordings: list[Recording], codes: list[Tensor], seconds: dict[str, list[float]], frame_rate: float
) -> list[Spoken]:
    """Recordings with their codes and the ``seconds`` of their characters."""
    return [
        Spoken(recording.text, own, torch.tensor(seconds[recording.name]) * frame_rate)
        for recording, own in zip(recordings, codes, strict=True)
    ]


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
        documents.append(join(parts))
        total += len(documents[-1].codes)
    return documents


def misplace(durations: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """``durations`` (C, L) that put characters up to ``amount`` frames too early or too late, now this way, now that.

    The shift is a line between random points every eight frames, each document's as large as its own draw says.
    """
    ends = durations.cumsum(1)
    knots = int(ends.max() / _KNOT) + 2
    size = amount * torch.rand(len(ends), 1, generator=generator)
    shifts = size * (2 * torch.rand(len(ends), knots, generator=generator) - 1)  # (C, knots)
    place = ends / _KNOT
    left = place.long().clamp_max(knots - 2)
    part = place - left
    shift = shifts.gather(1, left) * (1 - part) + shifts.gather(1, left + 1) * part
    moved = (ends + shift).clamp_min(0).cummax(1).values
    return moved.diff(dim=1, prepend=torch.zeros(len(ends), 1))


def pack(documents: list[Spoken], width: int, specials: tuple[int, int, int]) -> Packed:
    """Put documents into rows of at least ``width`` places; ``specials`` are the codes pad, begin and end."""
    pad, begin, end = specials
    rows: list[list[int]] = []
    room: list[int] = []
    sizes = [1 + len(document.codes) for document in documents]
    width = max(width, *sizes)
    for number in sorted(range(len(documents)), key=lambda place: -sizes[place]):
        place = next((i for i, left in enumerate(room) if left >= sizes[number]), None)
        if place is None:
            rows.append([])
            room.append(width)
            place = len(rows) - 1
        rows[place].append(number)
        room[place] -= sizes[number]
    books = documents[0].codes.shape[1]
    shape = (len(rows), width)
    durations = pad_sequence([document.durations for document in documents], batch_first=True)
    lengths = torch.tensor([len(document.durations) for document in documents])
    packed = Packed(
        text=torch.zeros(durations.shape, dtype=torch.long), durations=durations,
        present=torch.arange(durations.shape[1]) < lengths[:, None],
        codes=torch.zeros(*shape, books, dtype=torch.long), is_frame=torch.zeros(shape, dtype=torch.bool),
        document=torch.full(shape, -1), position=torch.zeros(shape, dtype=torch.long),
        target=torch.full(shape, -100),
    )  # fmt: skip
    packed.codes[..., 0] = pad
    for row, content in enumerate(rows):
        start = 0
        for number in content:
            document, stop = documents[number], start + sizes[number]
            packed.text[number, 1 : len(document.text) + 1] = text_tokens(document.text)
            packed.codes[row, start, 0] = begin
            packed.codes[row, start + 1 : stop] = document.codes
            packed.is_frame[row, start + 1 : stop] = True
            packed.document[row, start:stop] = number
            packed.position[row, start:stop] = torch.arange(stop - start)
            packed.target[row, start : stop - 1] = document.codes[:, 0]
            packed.target[row, stop - 1] = end
            start = stop
    return packed
