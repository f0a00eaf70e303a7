"""Questions about pictures and videos as the processor of a model wants them: chat messages, or a text with placeholders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from mmspec.vlm.clips import Clip, ClipReader, is_clip
from mmspec.vlm.images import is_image, load_image

ROLES = ("assistant", "system", "user")
_PARTS = ("image", "text", "video")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """A prompt: text with the placeholders of its pictures and videos, and these in the order of the placeholders."""

    text: str
    images: tuple[Image.Image, ...]
    videos: tuple[Clip, ...] = ()


def questions_of_prompts(
    processor: Any, prompt: str | Sequence[str], images: Any, videos: Any = None, read_clip: ClipReader | None = None
) -> list[Question]:
    """Questions of texts and their pictures and videos.

    Args:
        processor: Of the model. With a chat template a text becomes the message of a user, its videos and pictures first;
            without one it is taken as it is and must name its own placeholders, or gets them at its beginning.
        prompt: One text or several.
        images: ``None``, one picture, a list with one entry a prompt, each a picture or a list of pictures, or for a
            single text a list of its pictures.
        videos: The same of videos, each what ``read_clip`` reads; a list of pictures is one video.
        read_clip: Reads a video; needed where there is one.

    Raises:
        TypeError, ValueError: If texts, pictures and videos do not go together, or the model reads no videos.
    """
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    if not texts or any(not isinstance(text, str) for text in texts):
        raise TypeError(f"`prompt` must be a string or a non-empty list of strings, got {prompt!r}.")
    single = isinstance(prompt, str)
    loaded = [
        [load_image(image, number) for number, image in enumerate(group)]
        for group in _groups(images, len(texts), single)
    ]
    clips = [
        [_load_clip(processor, clip, read_clip) for clip in group]
        for group in _groups(videos, len(texts), single, "videos", is_clip)
    ]
    make = _of_user if _template(processor) else _plain
    return [make(processor, *parts) for parts in zip(texts, loaded, clips, strict=True)]


def questions_of_messages(
    processor: Any,
    messages: Sequence[Message] | Sequence[Sequence[Message]],
    images: Any,
    videos: Any = None,
    read_clip: ClipReader | None = None,
) -> list[Question]:
    """Questions of one conversation or several.

    Args:
        processor: Of the model, with a chat template.
        messages: ``[{"role": "user", "content": [{"type": "image", "image": ...}, {"type": "text", "text": ...}]}]``;
            ``content`` may be a string. Parts of type ``image`` without a picture take those of ``images`` in turn, parts
            of type ``video`` without one those of ``videos``.
        images, videos, read_clip: As for :func:`questions_of_prompts`.

    Raises:
        TypeError, ValueError: If a message has another form, or pictures or videos are left over or missing.
    """
    if not _template(processor):
        raise ValueError("`messages` need a chat template, which this processor lacks; give a `prompt`.")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise TypeError("`messages` must be a non-empty list of messages, or a list of such lists.")
    single = isinstance(messages[0], Mapping)
    talks: list[Any] = [messages] if single else list(messages)
    pictures = _groups(images, len(talks), single)
    clips = _groups(videos, len(talks), single, "videos", is_clip)

    def read(source: Any) -> Clip:
        return _load_clip(processor, source, read_clip)

    filled = [
        _filled(talk, list(some), list(more), read) for talk, some, more in zip(talks, pictures, clips, strict=True)
    ]
    return [_from_messages(processor, talk) for talk in filled]


def processor_inputs(processor: Any, question: Question) -> dict[str, Tensor]:
    """Tensors of one question, as the adapter encodes them.

    Raises:
        ValueError: If the processor cannot read the pictures, such as one pixel wide ones, with their sizes.
    """
    more: dict[str, Any] = {"images": list(question.images)} if question.images else {}
    if question.videos:
        more["videos"] = [clip.frames for clip in question.videos]
        more["video_metadata"] = [clip.metadata for clip in question.videos]
        more["do_sample_frames"] = False  # that was done
    begin = getattr(processor.tokenizer, "bos_token", None)
    if begin and question.text.startswith(begin):  # a template wrote it: the tokenizer must not do so again
        more["add_special_tokens"] = False
    try:
        return dict(processor(text=[question.text], return_tensors="pt", **more))
    except (ValueError, ZeroDivisionError, IndexError, RuntimeError) as error:
        if not question.images:
            raise
        sizes = ", ".join(f"{image.width} x {image.height}" for image in question.images)
        raise ValueError(
            f"{type(processor).__name__} cannot read pictures of {sizes} pixels (width x height): {error}"
        ) from error


def _load_clip(processor: Any, source: Any, read_clip: ClipReader | None) -> Clip:
    if isinstance(source, Clip):
        return source
    if getattr(processor, "video_processor", None) is None or read_clip is None:
        raise ValueError(f"{type(processor).__name__} reads no videos; give their frames as `images`.")
    return read_clip(source)


def _template(processor: Any) -> bool:
    return getattr(processor, "chat_template", None) is not None


def _groups(
    images: Any, count: int, single: bool, name: str = "images", is_one: Callable[[Any], bool] = is_image
) -> list[list[Any]]:
    """The pictures, or what else ``name`` says, of each of ``count`` prompts."""
    if images is None:
        return [[] for _ in range(count)]
    one = "picture" if name == "images" else "video"
    if is_one(images):
        if count > 1:
            raise ValueError(f"There are {count} prompts, but one {one}; give a list with the {one}s of each.")
        return [[images]]
    listed = list(images)
    if single and not (len(listed) == 1 and not is_one(listed[0])):
        if any(not is_one(each) for each in listed):
            raise ValueError(f"`{name}` of a single prompt must be {one}s, not lists of them.")
        return [listed]
    if len(listed) != count:
        raise ValueError(f"There are {count} prompts, but `{name}` has {len(listed)} entries.")
    return [[each] if is_one(each) else list(each) for each in listed]


def _filled(
    talk: Sequence[Message], images: list[Any], videos: list[Any], read: Callable[[Any], Clip]
) -> list[Message]:
    """``talk`` with every picture and video loaded and in its place."""
    waiting = {"image": images, "video": videos}
    given = {kind: len(sources) for kind, sources in waiting.items()}
    messages: list[Message] = []
    number = 0
    for message in talk:
        if not isinstance(message, Mapping) or message.get("role") not in ROLES or "content" not in message:
            raise ValueError(f"A message needs a `role` of {', '.join(ROLES)} and a `content`, got {message!r}.")
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        filled = []
        for part in parts:
            if not isinstance(part, Mapping) or part.get("type") not in _PARTS:
                raise ValueError(f"A part of a message must have a `type` of {', '.join(_PARTS)}, got {part!r}.")
            if (kind := part["type"]) != "text":
                source = _source(part, waiting[kind], given[kind])
                number += kind == "image"
                part = {"type": kind, kind: load_image(source, number - 1) if kind == "image" else read(source)}
            filled.append(part)
        messages.append({"role": message["role"], "content": filled})
    for kind, sources in waiting.items():
        if sources:
            name = "pictures" if kind == "image" else "videos"
            raise ValueError(f"`{kind}s` has {given[kind]} {name}, {len(sources)} more than the messages name.")
    return messages


def _source(part: Message, waiting: list[Any], given: int) -> Any:
    """What a part shows: its own, or the next one that waits."""
    kind = part["type"]
    if (source := part.get(kind)) is not None:
        return source
    if not waiting:
        name = "pictures" if kind == "image" else "videos"
        raise ValueError(f"The messages name more {name} than the {given} of `{kind}s`.")
    return waiting.pop(0)


def _of_user(processor: Any, text: str, pictures: Sequence[Image.Image], clips: Sequence[Clip]) -> Question:
    parts: list[Any] = [{"type": "video", "video": clip} for clip in clips]
    parts += [{"type": "image", "image": picture} for picture in pictures]
    return _from_messages(processor, [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])


def _from_messages(processor: Any, messages: Sequence[Message]) -> Question:
    bare = [
        {
            **message,
            "content": [part if part["type"] == "text" else {"type": part["type"]} for part in message["content"]],
        }
        for message in messages
    ]
    text = processor.apply_chat_template(bare, add_generation_prompt=True, tokenize=False)
    parts = [part for message in messages for part in message["content"]]
    shown = {kind: [part[kind] for part in parts if part["type"] == kind] for kind in ("image", "video")}
    return _checked(processor, text, shown["image"], shown["video"])


def _plain(processor: Any, text: str, pictures: Sequence[Image.Image], clips: Sequence[Clip]) -> Question:
    for kind, shown in (("image", pictures), ("video", clips)):
        mark = mark_of(processor, kind)
        if mark and mark not in text:
            text = mark * len(shown) + text
    return _checked(processor, text, pictures, clips)


def _checked(processor: Any, text: str, pictures: Sequence[Image.Image], clips: Sequence[Clip]) -> Question:
    for kind, name, shown in (("image", "pictures", pictures), ("video", "videos", clips)):
        mark = mark_of(processor, kind)
        if mark and text.count(mark) != len(shown):
            raise ValueError(
                f"The prompt names {text.count(mark)} {name} ({mark!r}), but {len(shown)} are given; they must agree."
            )
    return Question(text, tuple(pictures), tuple(clips))


def mark_of(processor: Any, kind: str) -> str | None:
    """What stands for an ``image`` or a ``video`` in a text that the processor reads; ``None`` where it does not say."""
    mark = getattr(processor, f"{kind}_token", None)
    return mark if isinstance(mark, str) else None
