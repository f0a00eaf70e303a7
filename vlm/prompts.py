"""Questions about pictures as the processor of a model wants them: chat messages, or a text with placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from mmspec.vlm.images import is_image, load_image

ROLES = ("assistant", "system", "user")
_PARTS = ("image", "text")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """A prompt: text with the placeholders of its pictures, and the pictures in the order of the placeholders."""

    text: str
    images: tuple[Image.Image, ...]


def questions_of_prompts(processor: Any, prompt: str | Sequence[str], images: Any) -> list[Question]:
    """Questions of texts and their pictures.

    Args:
        processor: Of the model. With a chat template a text becomes the message of a user, its pictures first; without
            one it is taken as it is and must name its own placeholders, or gets them at its beginning.
        prompt: One text or several.
        images: ``None``, one picture, a list with one entry a prompt, each a picture or a list of pictures, or for a
            single text a list of its pictures.

    Raises:
        TypeError, ValueError: If texts and pictures do not go together.
    """
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    if not texts or any(not isinstance(text, str) for text in texts):
        raise TypeError(f"`prompt` must be a string or a non-empty list of strings, got {prompt!r}.")
    groups = _groups(images, len(texts), single=isinstance(prompt, str))
    loaded = [[load_image(image, number) for number, image in enumerate(group)] for group in groups]
    if _template(processor):
        return [
            _from_messages(processor, [_user_message(text, pictures)])
            for text, pictures in zip(texts, loaded, strict=True)
        ]
    return [_plain(processor, text, pictures) for text, pictures in zip(texts, loaded, strict=True)]


def questions_of_messages(
    processor: Any, messages: Sequence[Message] | Sequence[Sequence[Message]], images: Any
) -> list[Question]:
    """Questions of one conversation or several.

    Args:
        processor: Of the model, with a chat template.
        messages: ``[{"role": "user", "content": [{"type": "image", "image": ...}, {"type": "text", "text": ...}]}]``;
            ``content`` may be a string. Parts of type ``image`` without a picture take those of ``images`` in turn.
        images: Pictures for such parts, as for :func:`questions_of_prompts`.

    Raises:
        TypeError, ValueError: If a message has another form, or pictures are left over or missing.
    """
    if not _template(processor):
        raise ValueError("`messages` need a chat template, which this processor lacks; give a `prompt`.")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise TypeError("`messages` must be a non-empty list of messages, or a list of such lists.")
    single = isinstance(messages[0], Mapping)
    talks: list[Any] = [messages] if single else list(messages)
    groups = _groups(images, len(talks), single)
    return [_from_messages(processor, _filled(talk, list(group))) for talk, group in zip(talks, groups, strict=True)]


def processor_inputs(processor: Any, question: Question) -> dict[str, Tensor]:
    """Tensors of one question, as the adapter encodes them."""
    more: dict[str, Any] = {"images": list(question.images)} if question.images else {}
    begin = getattr(processor.tokenizer, "bos_token", None)
    if begin and question.text.startswith(begin):  # a template wrote it: the tokenizer must not do so again
        more["add_special_tokens"] = False
    made = processor(text=[question.text], return_tensors="pt", **more)
    return dict(made)


def _template(processor: Any) -> bool:
    return getattr(processor, "chat_template", None) is not None


def _groups(images: Any, count: int, single: bool) -> list[list[Any]]:
    """The pictures of each of ``count`` prompts."""
    if images is None:
        return [[] for _ in range(count)]
    if is_image(images):
        if count > 1:
            raise ValueError(f"There are {count} prompts, but one picture; give a list with the pictures of each.")
        return [[images]]
    listed = list(images)
    if single and not (len(listed) == 1 and not is_image(listed[0])):
        if any(not is_image(each) for each in listed):
            raise ValueError("`images` of a single prompt must be pictures, not lists of them.")
        return [listed]
    if len(listed) != count:
        raise ValueError(f"There are {count} prompts, but `images` has {len(listed)} entries.")
    return [[each] if is_image(each) else list(each) for each in listed]


def _user_message(text: str, pictures: Sequence[Image.Image]) -> Message:
    parts: list[Any] = [{"type": "image", "image": picture} for picture in pictures]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def _filled(talk: Sequence[Message], waiting: list[Any]) -> list[Message]:
    """``talk`` with every picture loaded and in its place."""
    given = len(waiting)
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
            if part["type"] == "image":
                source = part.get("image")
                if source is None:
                    if not waiting:
                        raise ValueError(f"The messages name more pictures than the {given} of `images`.")
                    source = waiting.pop(0)
                part = {"type": "image", "image": load_image(source, number)}
                number += 1
            filled.append(part)
        messages.append({"role": message["role"], "content": filled})
    if waiting:
        raise ValueError(f"`images` has {given} pictures, {len(waiting)} more than the messages name.")
    return messages


def _from_messages(processor: Any, messages: Sequence[Message]) -> Question:
    bare = [
        {**message, "content": [{"type": "image"} if part["type"] == "image" else part for part in message["content"]]}
        for message in messages
    ]
    text = processor.apply_chat_template(bare, add_generation_prompt=True, tokenize=False)
    pictures = [part["image"] for message in messages for part in message["content"] if part["type"] == "image"]
    return _checked(processor, text, pictures)


def _plain(processor: Any, text: str, pictures: Sequence[Image.Image]) -> Question:
    mark = image_mark(processor)
    if mark and mark not in text:
        text = mark * len(pictures) + text
    return _checked(processor, text, pictures)


def _checked(processor: Any, text: str, pictures: Sequence[Image.Image]) -> Question:
    mark = image_mark(processor)
    if mark and text.count(mark) != len(pictures):
        raise ValueError(
            f"The prompt names {text.count(mark)} pictures ({mark!r}), but {len(pictures)} are given; they must agree."
        )
    return Question(text, tuple(pictures))


def image_mark(processor: Any) -> str | None:
    """What stands for a picture in a text that the processor reads; ``None`` where it does not say."""
    mark = getattr(processor, "image_token", None)
    return mark if isinstance(mark, str) else None
