"""What a batch can generate. A task says which columns its rows have, which rows go together, and how they are made and written.

Adding a modality is one class here or in a file of its own, and one line in :data:`TASKS`.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from mmspec.batch.manifest import Column, Row
from mmspec.batch.provenance import provenance
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats

SAMPLING = {"temperature": Column("float"), "top_k": Column("int"), "top_p": Column("float")}


@dataclass(frozen=True)
class Made:
    """The outputs of a micro-batch as files' ``contents``, the mean of its rows' new tokens, and its sequential forwards."""

    contents: list[bytes]
    tokens: float
    forwards: int


class Task(Protocol):
    """A kind of batch.

    Attributes:
        main: The column that a line of plain text gives.
        suffix: Of the outputs.
        columns: Legal columns.
    """

    main: ClassVar[str]
    suffix: ClassVar[str]
    columns: ClassVar[Mapping[str, Column]]

    def check(self, row: Row) -> None:
        """Raise ValueError or an OSError for what is wrong with ``row`` and needs no model to be seen."""
        ...

    def options(self, row: Row) -> Mapping[str, Any]:
        """Arguments that all rows of a micro-batch must share."""
        ...

    def length(self, row: Row) -> float:
        """Anything that grows with the work of ``row``."""
        ...

    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        """Generate ``rows``, whose options are equal."""
        ...

    def memory(self, pipe: Any, rows: Sequence[Row]) -> Any:
        """Estimated bytes besides the weights for ``rows`` at once; ``None`` where the pipeline gives no estimate."""
        ...


@dataclass(frozen=True)
class BaseTask(ABC):
    """What tasks share.

    Args:
        model: Name and hash of the model, for the outputs.
        arguments: Arguments of every call, such as ``speculate``.
    """

    model: Mapping[str, str]
    arguments: Mapping[str, Any]
    main: ClassVar[str]
    suffix: ClassVar[str]
    columns: ClassVar[Mapping[str, Column]]
    shared: ClassVar[tuple[str, ...]] = tuple(SAMPLING)

    def options(self, row: Row) -> dict[str, Any]:
        return {name: row.values[name] for name in self.shared if name in row.values}

    def length(self, row: Row) -> float:
        return float(sum(len(value) for value in row.values.values() if isinstance(value, str)))

    def check(self, row: Row) -> None:
        SamplingParams(**{name: row.values[name] for name in SAMPLING if name in row.values})

    @abstractmethod
    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        """Generate ``rows``, whose options are equal."""

    def call(self, pipe: Any, rows: Sequence[Row], **inputs: Any) -> Any:
        """The pipeline's output for ``rows``."""
        return pipe(**inputs, **self.options(rows[0]), **self.arguments, seed=[row.seed for row in rows])

    def facts(self, row: Row, stats: DecodeStats) -> dict[str, Any]:
        """What the output of ``row`` says about itself."""
        return provenance(row, stats, self.model)

    def memory(self, pipe: Any, rows: Sequence[Row]) -> Any:
        """Estimated bytes besides the weights for ``rows`` at once; ``None`` where the pipeline gives no estimate."""
        return None

    def made(self, contents: list[bytes], stats: DecodeStats) -> Made:
        """The outputs with what they took."""
        return Made(contents, stats.tokens / len(contents), stats.forwards)


class ImageTask(BaseTask):
    """Pictures from captions or classes, as PNG files whose text chunks say how they were made."""

    main = "prompt"
    suffix = ".png"
    columns: ClassVar[Mapping[str, Column]] = {
        "prompt": Column(), "class_label": Column(), "negative_prompt": Column(), "guidance_scale": Column("float"),
        "height": Column("int"), "width": Column("int"), "aspect_ratio": Column(), **SAMPLING,
    }  # fmt: skip
    shared = (*SAMPLING, "negative_prompt", "guidance_scale", "height", "width", "aspect_ratio")

    def options(self, row: Row) -> dict[str, Any]:
        # captions and classes are different calls
        return super().options(row) | ({"class_labels": None} if "prompt" in row.values else {"prompt": None})

    def check(self, row: Row) -> None:
        super().check(row)
        if ("prompt" in row.values) == ("class_label" in row.values):
            raise ValueError("A row gives `prompt` or `class_label`, one of the two.")

    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        from mmspec.pipelines.pictures import png_bytes

        output = self.call(pipe, rows, **self._conditions(rows))
        contents = [
            png_bytes(picture, self.facts(row, output.stats)) for row, picture in zip(rows, output.images, strict=True)
        ]
        return self.made(contents, output.stats)

    def _conditions(self, rows: Sequence[Row]) -> dict[str, Any]:
        if "prompt" in rows[0].values:
            return {"prompt": [row.values["prompt"] for row in rows]}
        labels = [row.values["class_label"] for row in rows]
        return {"class_labels": [int(text) if text.isdecimal() else text for text in labels]}

    def memory(self, pipe: Any, rows: Sequence[Row]) -> Any:
        return self.call(pipe.memory_need, rows, **self._conditions(rows))


class SpeakTask(BaseTask):
    """Spoken texts, as WAV files whose comment says how they were made."""

    main = "text"
    suffix = ".wav"
    columns: ClassVar[Mapping[str, Column]] = {
        "text": Column(required=True), "reference": Column("path"), "reference_text": Column(),
        "residual_temperature": Column("float"), "residual_top_k": Column("int"), "speed": Column("float"),
        "max_frames": Column("int"), **SAMPLING,
    }  # fmt: skip
    shared = (
        *SAMPLING, "reference", "reference_text", "residual_temperature", "residual_top_k", "speed", "max_frames",
    )  # fmt: skip

    def check(self, row: Row) -> None:
        super().check(row)
        check_file(row, "reference")

    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        output = self.call(pipe, rows, prompt=[row.values["text"] for row in rows], output_type="pcm")
        contents = [
            wav_bytes(audio, output.sampling_rate, self.facts(row, output.stats))
            for row, audio in zip(rows, output.audios, strict=True)
        ]
        return self.made(contents, output.stats)


class TranscribeTask(BaseTask):
    """Transcripts of recordings, as JSON files."""

    main = "audio"
    suffix = ".json"
    columns: ClassVar[Mapping[str, Column]] = {
        "audio": Column("path", required=True), "preset": Column(), "language": Column(), "punctuation": Column("bool"),
        "segment_seconds": Column("float"),
    }  # fmt: skip
    shared = ("preset", "language", "punctuation", "segment_seconds")

    def check(self, row: Row) -> None:
        check_file(row, "audio")

    def length(self, row: Row) -> float:
        return float(Path(row.values["audio"]).stat().st_size)

    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        output = self.call(pipe, rows, audio=[row.values["audio"] for row in rows])
        contents = [
            json_bytes(output.facts(number) | self.facts(row, output.stats)) for number, row in enumerate(rows)
        ]
        return self.made(contents, output.stats)


class AskTask(BaseTask):
    """Answers to questions about pictures, as JSON files."""

    main = "prompt"
    suffix = ".json"
    columns: ClassVar[Mapping[str, Column]] = {
        "prompt": Column(required=True), "image": Column("path", required=True), "max_new_tokens": Column("int"),
        **SAMPLING,
    }  # fmt: skip
    shared = (*SAMPLING, "max_new_tokens")

    def check(self, row: Row) -> None:
        super().check(row)
        check_file(row, "image")

    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        output = self.call(
            pipe, rows, prompt=[row.values["prompt"] for row in rows], images=[row.values["image"] for row in rows]
        )
        contents = [
            json_bytes({"answer": text, **self.facts(row, output.stats)})
            for row, text in zip(rows, output.texts, strict=True)
        ]
        return self.made(contents, output.stats)


class VideoTask(BaseTask):
    """Clips that continue pictures or clips, as GIF files with a JSON file's facts in their comment."""

    main = "video"
    suffix = ".gif"
    columns: ClassVar[Mapping[str, Column]] = {
        "video": Column("path", required=True), "prompt": Column(), "num_frames": Column("int"), "fps": Column("float"),
        "guidance_scale": Column("float"), **SAMPLING,
    }  # fmt: skip
    shared = (*SAMPLING, "num_frames", "fps", "guidance_scale")

    def options(self, row: Row) -> dict[str, Any]:
        return super().options(row) | ({} if "prompt" in row.values else {"prompt": None})

    def check(self, row: Row) -> None:
        super().check(row)
        check_file(row, "video")

    def run(self, pipe: Any, rows: Sequence[Row]) -> Made:
        prompts = {"prompt": [row.values["prompt"] for row in rows]} if "prompt" in rows[0].values else {}
        output = self.call(pipe, rows, video=[row.values["video"] for row in rows], output_type="gif", **prompts)
        contents = [
            with_comment(clip, self.facts(row, output.stats)) for row, clip in zip(rows, output.frames, strict=True)
        ]
        return self.made(contents, output.stats)


TASKS: dict[str, type[BaseTask]] = {
    "image": ImageTask, "speak": SpeakTask, "transcribe": TranscribeTask, "ask": AskTask, "video": VideoTask,
}  # fmt: skip


def check_file(row: Row, column: str) -> None:
    """Raise FileNotFoundError if ``row`` names a file in ``column`` that is not there."""
    path = row.values.get(column)
    if path is not None and not Path(path).is_file():
        raise FileNotFoundError(f"`{column}` names {path}, which is no file.")


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """``content`` as a JSON file."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def wav_bytes(samples: Any, rate: int, facts: Mapping[str, Any]) -> bytes:
    """16-bit WAV of ``samples`` (n,) with ``facts`` in the comment of its INFO chunk."""
    import soundfile

    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, 1, "PCM_16", format="WAV") as file:
        file.comment = json.dumps(facts, ensure_ascii=True)
        file.write(samples)
    return buffer.getvalue()


def with_comment(gif: bytes, facts: Mapping[str, Any]) -> bytes:
    """``gif`` with ``facts`` in a comment block right before its trailer."""
    text = json.dumps(facts, ensure_ascii=True).encode()
    blocks = b"".join(bytes([len(text[at : at + 255])]) + text[at : at + 255] for at in range(0, len(text), 255))
    return gif[:-1] + b"\x21\xfe" + blocks + b"\x00" + gif[-1:]
