"""Vision-language models: questions about pictures in, text out, by any drafter and exactly as without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, ProcessorMixin

from mmspec.acceptance.base import Acceptance
from mmspec.core.grammar import Grammar
from mmspec.core.guidance import Guidance
from mmspec.core.loop import Progress
from mmspec.core.path_laws import NoRepeatNGram, PathLaw, RepetitionPenalty
from mmspec.core.scaffold import Scaffold
from mmspec.core.stats import DecodeStats, RowStats, merge_stats
from mmspec.core.stopping import Stopping
from mmspec.core.templates import Template
from mmspec.core.verify import AcceptanceRule
from mmspec.drafters.base import Drafter
from mmspec.models.hf import cache_bytes_per_slot
from mmspec.models.loading import download_options, local_folder
from mmspec.models.transformers_loading import load_transformers_model
from mmspec.pipelines.base import DecodeRequest, SpecPipeline
from mmspec.pipelines.seeds import row_seeds
from mmspec.pipelines.vision_language_call import AnswerCall, AnswerOutput, PartialAnswer
from mmspec.vlm.adapters import ADAPTERS
from mmspec.vlm.adapters.base import EncodedPrompt, VisionLanguageAdapter
from mmspec.vlm.prompts import Message, Question, processor_inputs, questions_of_messages, questions_of_prompts
from mmspec.vlm.text import StopStrings, decode, token_texts


@dataclass
class _Batch:
    """Rows that are decoded together: their places in the call, and the request."""

    places: range
    request: DecodeRequest


class VisionLanguagePipeline(SpecPipeline):
    """Answer questions about pictures with a vision-language model of transformers.

    Args:
        model: LLaVA (also Pixtral), LLaVA-NeXT, LLaVA-OneVision, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, SmolVLM, Idefics3,
            InternVL, PaliGemma, GLM-OCR or GOT-OCR2.
        processor: Its processor.
        drafter: How tokens are drafted; ``None`` decodes plainly.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.

    Raises:
        ValueError: If the model is of no known family, or its cache cannot be rolled back (sliding windows).
    """

    model_cpu_offload_seq = "model"
    _optional_components = ["drafter", "acceptance"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(model=model, processor=processor, drafter=drafter, acceptance=acceptance)
        _ = self.adapter

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a saved pipeline, see :meth:`SpecPipeline.from_pretrained`."""
        folder = local_folder(pretrained_model_name_or_path)
        if folder is None:
            folder = Path(cls.download(str(pretrained_model_name_or_path), **download_options(kwargs)))
        if kwargs.get("model") is None and (folder / "model").is_dir():
            dtype = kwargs.get("dtype", kwargs.get("torch_dtype", torch.float32))
            kwargs["model"] = load_transformers_model(folder / "model", dtype)
        return super().from_pretrained(folder, **kwargs)

    @property
    def adapter(self) -> VisionLanguageAdapter:
        """The model behind the components."""
        made = self.__dict__.get("_adapter")
        if made is None or made.network is not self.model:
            made = ADAPTERS.load(self.model.config.model_type)(self.model)
            self.__dict__["_adapter"] = made
        return made

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        images: Any = None,
        videos: Any = None,
        *,
        messages: Sequence[Message] | Sequence[Sequence[Message]] | None = None,
        max_new_tokens: int = 64,
        min_new_tokens: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop_strings: str | Sequence[str] | None = None,
        stop_tokens: Sequence[int] | None = None,
        repetition_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        json_schema: Mapping[str, Any] | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
        micro_batch_size: int = 16,
        output_type: str = "text",
        num_frames: int = 32,
        video_fps: float | None = None,
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> AnswerOutput:
        """Answer.

        Args:
            prompt: One text or several. With a chat template each becomes the message of a user, its videos and
                pictures first.
            images: Pictures: a path, bytes, a PIL image, an array or a tensor; one for a single prompt or a list; for
                several prompts a list with a picture, or a list of pictures, for each.
            videos: Videos: a path, a list of PIL frames, an array (F, h, w, 3) or a tensor (F, 3, h, w); as for ``images``
                one for a single prompt, or a list. For models whose processor reads videos.
            messages: Conversations instead of ``prompt``, in the form of transformers' chat templates.
            max_new_tokens: Exact budget of each row.
            min_new_tokens: No stop token is drawn before so many tokens.
            temperature, top_k, top_p: See :class:`SamplingParams`; 0 is greedy.
            stop_strings: Texts that end an answer, and are left out of it.
            stop_tokens: Tokens that end a row; by default those of the model's generation config.
            repetition_penalty: Makes tokens less likely that prompt or answer hold already, as transformers' ``generate``
                does; 1 changes nothing. Default: what the model's generation config says.
            no_repeat_ngram_size: No sequence of so many tokens comes twice; 0 allows it. Default as above.
            json_schema: Form of the answer: an object whose ``properties`` all come, in their order, see
                :meth:`mmspec.core.templates.Template.of_schema`. Its fixed parts are decided by nobody, and drafted.
            generator, seed: Source of the row seeds.
            speculate: ``False`` decodes plainly.
            micro_batch_size: Rows decoded together.
            output_type: ``text`` or ``tokens``.
            num_frames: Most frames of a video; longer ones are thinned evenly.
            video_fps: Frames a second of the videos; by default what their files say, else 24.
            callback_on_step_end, callback_on_step_end_tensor_inputs: As for the image pipelines.

        Raises:
            TypeError, ValueError, FileNotFoundError: For bad arguments and pictures, before the first forward.
        """
        self.check_callback(callback_on_step_end_tensor_inputs)
        call = AnswerCall(
            max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, temperature=temperature, top_k=top_k,
            top_p=top_p, stop_strings=stop_strings, stop_tokens=stop_tokens, repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size, json_schema=json_schema, generator=generator, seed=seed, speculate=speculate,
            micro_batch_size=micro_batch_size, output_type=output_type, num_frames=num_frames, video_fps=video_fps,
        )  # fmt: skip
        questions = self._questions(prompt, images, videos, messages, call)
        *_, output = self._answer(questions, call, callback_on_step_end, callback_on_step_end_tensor_inputs)
        self.maybe_free_model_hooks()
        return output

    @torch.no_grad()
    def stream(
        self,
        prompt: str | None = None,
        images: Any = None,
        videos: Any = None,
        *,
        messages: Sequence[Message] | None = None,
        **arguments: Any,
    ) -> Iterator[PartialAnswer]:
        """Answer one prompt and yield its text as it grows; what was given out never changes.

        Args:
            prompt, images, videos, messages: One prompt or conversation, as for a call.
            arguments: Others of a call, but for its callbacks.

        Yields:
            The text so far; the last one is ``finished`` and carries the complete output.
        """
        call = AnswerCall(**arguments)
        questions = self._questions(prompt, images, videos, messages, call)
        if len(questions) != 1:
            raise ValueError(f"`stream` answers one prompt, got {len(questions)}; call the pipeline for several.")
        ends = StopStrings(self.processor.tokenizer, call.strings)
        given = ""
        for output in self._answer(questions, call, partial=True):
            text = ends.settled(decode(self.processor.tokenizer, output.tokens[0]))
            if len(text) > len(given):
                delta, given = text[len(given) :], text
                yield PartialAnswer(text, delta, tokens=output.tokens[0], stats=output.stats)
        self.maybe_free_model_hooks()
        final = ends.shorten(decode(self.processor.tokenizer, output.tokens[0]))
        yield PartialAnswer(
            final, final[len(given) :], finished=True, output=output, tokens=output.tokens[0], stats=output.stats
        )

    @torch.no_grad()
    def requests(self, prompt: str | Sequence[str], images: Any = None, **arguments: Any) -> list[DecodeRequest]:
        """The requests, one a micro-batch, by which a call with these ``arguments`` would decode; for benches."""
        call = AnswerCall(**arguments)
        questions = self._questions(prompt, images, None, None, call)
        seeds = row_seeds(len(questions), call.generator, call.seed)
        batches, _ = self._batches(questions, seeds, call, *self._method(call))
        return [batch.request for batch in batches]

    def _questions(self, prompt: Any, images: Any, videos: Any, messages: Any, call: AnswerCall) -> list[Question]:
        if (prompt is None) == (messages is None):
            raise ValueError("Give exactly one of `prompt` and `messages`.")
        if messages is not None:
            return questions_of_messages(self.processor, messages, images, videos, call.read_clip)
        return questions_of_prompts(self.processor, prompt, images, videos, call.read_clip)

    def _answer(
        self,
        questions: list[Question],
        call: AnswerCall,
        callback: Callable[..., Any] | None = None,
        tensor_inputs: Sequence[str] = ("tokens",),
        partial: bool = False,
    ) -> Iterator[AnswerOutput]:
        """Decode every row; yield the output at the end, and with ``partial`` what there is after each round."""
        seeds = row_seeds(len(questions), call.generator, call.seed)
        drafter, rule = self._method(call)
        batches, seconds = self._batches(questions, seeds, call, drafter, rule)
        tokens: list[list[int]] = [[] for _ in questions]
        parts: list[DecodeStats] = []
        for batch in batches:
            for decoder, progress in self.run_decoders([batch.request], callback, tensor_inputs):
                _write(tokens, batch, progress)
                if partial:
                    yield self._output(tokens, call, decoder.stats)
            parts.append(decoder.stats)
            if self.interrupt:
                break
        stats = _joined(parts, seeds)
        stats.seconds["encode"] = seconds
        yield self._output(tokens, call, stats)

    def _output(self, tokens: list[list[int]], call: AnswerCall, stats: DecodeStats) -> AnswerOutput:
        texts = None
        if call.output_type == "text":
            ends = StopStrings(self.processor.tokenizer, call.strings)
            texts = [ends.shorten(decode(self.processor.tokenizer, row)) for row in tokens]
        return AnswerOutput(texts, [list(row) for row in tokens], stats)

    def _method(self, call: AnswerCall) -> tuple[Drafter | None, AcceptanceRule]:
        call.sampling.check_vocabulary(self.adapter.vocab_size)
        drafter, rule = self.choose_method(call.speculate, call.sampling)
        if drafter is not None:
            drafter.check_vocabulary(self.adapter.vocab_size)
            drafter.check_target(self.model)
        return drafter, rule

    def _batches(
        self,
        questions: list[Question],
        seeds: list[int],
        call: AnswerCall,
        drafter: Drafter | None,
        rule: AcceptanceRule,
    ) -> tuple[list[_Batch], float]:
        """Encode all prompts, check their lengths and split them into micro-batches; and the seconds that it took."""
        stopping, grammar = self._stopping(call)
        laws = self._path_laws(call, stopping.stop_tokens)
        start = time.perf_counter()
        inputs = [processor_inputs(self.processor, question) for question in questions]
        limit = self.adapter.max_positions
        for number, each in enumerate(inputs):
            length = each["input_ids"].shape[1]
            if length + call.max_new_tokens > limit:
                raise ValueError(
                    f"Prompt {number} has {length} tokens with its pictures and `max_new_tokens` is "
                    f"{call.max_new_tokens}, but the model has {limit} positions; shorten one of them."
                )
        prompts = [self.adapter.encode(each) for each in inputs]
        batches = []
        for first in range(0, len(prompts), call.micro_batch_size):
            places = range(first, min(first + call.micro_batch_size, len(prompts)))
            rows = [prompts[place] for place in places]
            request = self._request(rows, [seeds[place] for place in places], call, stopping, drafter, rule)
            request.grammar, request.path_laws = grammar, laws
            batches.append(_Batch(places, request))
        return batches, time.perf_counter() - start

    def _request(
        self,
        rows: list[EncodedPrompt],
        seeds: list[int],
        call: AnswerCall,
        stopping: Stopping,
        drafter: Drafter | None,
        rule: AcceptanceRule,
    ) -> DecodeRequest:
        adapter = self.adapter
        # places of pictures are no text: a copy of them, or from behind them, would be nonsense
        words = [prompt.ids[~prompt.visual.to(prompt.ids.device)] for prompt in rows]
        padded = torch.nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=-1)
        return DecodeRequest(
            model=lambda network, device: adapter.decoder(network, rows, device),
            network=self.model,
            seeds=seeds,
            sampling=call.sampling,
            stopping=stopping,
            guidance=Guidance(),
            drafter=drafter,
            rule=rule,
            prompt_ids=padded.to(self._execution_device),
            prompts=tuple(tuple(prompt.ids.tolist()) for prompt in rows),
            cache_bytes_per_slot=cache_bytes_per_slot(self.model.config.get_text_config(), self.model.dtype),
        )

    def _stopping(self, call: AnswerCall) -> tuple[Stopping, Grammar | None]:
        """When rows end, and which tokens may not come before ``min_new_tokens``."""
        stop = self.stop_tokens() if call.stop_tokens is None else [int(token) for token in call.stop_tokens]
        size = self.adapter.vocab_size
        if not all(0 <= token < size for token in stop):
            raise ValueError(f"`stop_tokens` must lie in [0, {size}), got {stop}.")
        ends = StopStrings(self.processor.tokenizer, call.strings)
        stopping = Stopping(call.max_new_tokens, tuple(stop), find_end=ends if ends.strings else None)
        if not call.min_new_tokens or not stop:
            return stopping, None
        free = torch.ones(size, dtype=torch.bool)
        going_on = free.clone()
        going_on[stop] = False
        return stopping, Grammar(torch.stack([going_on, free]), torch.tensor([0] * call.min_new_tokens + [1]))

    def stop_tokens(self) -> list[int]:
        """Tokens that end an answer, as the model's generation config has them."""
        stop: Any = getattr(self.model.generation_config, "eos_token_id", None)
        if stop is None:
            return []
        return [int(token) for token in (stop if isinstance(stop, (list, tuple, Tensor)) else [stop])]

    def _path_laws(self, call: AnswerCall, stop_tokens: Sequence[int]) -> tuple[PathLaw, ...]:
        """What makes the law of a token depend on those before it, in the order of transformers."""
        config: Any = self.model.generation_config
        penalty, size = (
            getattr(config, name, None) if given is None else given
            for name, given in (
                ("repetition_penalty", call.repetition_penalty),
                ("no_repeat_ngram_size", call.no_repeat_ngram_size),
            )
        )
        laws: list[PathLaw] = []
        if penalty not in (None, 1.0):
            laws.append(RepetitionPenalty(penalty))
        if size:
            laws.append(NoRepeatNGram(int(size)))
        if call.json_schema is not None:
            laws.append(self._scaffold(call.json_schema, stop_tokens))
        return tuple(laws)

    def _scaffold(self, schema: Mapping[str, Any], stop_tokens: Sequence[int]) -> Scaffold:
        """The law of answers of the form ``schema``; the texts of the tokens are made once."""
        tokenizer = self.processor.tokenizer
        known = self.__dict__.get("_token_texts")
        if known is None or known[0] is not tokenizer:
            known = self.__dict__["_token_texts"] = tokenizer, token_texts(tokenizer, self.adapter.vocab_size)
        return Scaffold(Template.of_schema(schema), known[1], stop_tokens)


def _write(tokens: list[list[int]], batch: _Batch, progress: Progress) -> None:
    for place, row, length in zip(batch.places, progress.tokens.tolist(), progress.lengths, strict=True):
        tokens[place] = row[:length]


def _joined(parts: list[DecodeStats], seeds: list[int]) -> DecodeStats:
    """Stats of a call; rows that an interruption kept from starting are in them too."""
    stats = merge_stats(parts)
    stats.rows += [RowStats(finish_reason="interrupted") for _ in range(len(seeds) - len(stats.rows))]
    stats.seeds = list(seeds)
    return stats
