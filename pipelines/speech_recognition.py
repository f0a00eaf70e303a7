"""Speech recognition: audio in, text with times out; drafted by CTC, by a small model, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin

from mmspec.acceptance.base import Acceptance
from mmspec.core.loop import Decoder, Progress
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats, RowStats, merge_stats
from mmspec.core.verify import Guarantee
from mmspec.drafters.base import Drafter, check_positive
from mmspec.models.loading import local_folder, read_json
from mmspec.models.transformers_loading import load_transformers_model
from mmspec.pipelines.base import SpecPipeline, download_options, short_name
from mmspec.pipelines.seeds import row_seeds
from mmspec.pipelines.speech_decoding import BatchMaker, RowBatch
from mmspec.pipelines.speech_output import PartialTranscript, SpeechOutput, join_segments
from mmspec.pipelines.speech_rows import Listener, SpeechRow, SpeechSettings
from mmspec.speech.activity import Segment, split
from mmspec.speech.adapters import ADAPTERS
from mmspec.speech.adapters.base import SpeechAdapter, SpeechTask
from mmspec.speech.audio import Clip, load_audio
from mmspec.speech.ctc_drafter import CTCDrafter
from mmspec.speech.presets import choose_preset, preset_method

_MIN_SHARE = 0.5  # of the longest segment: a long recording is split at the first pause behind it


class SpeechRecognitionPipeline(SpecPipeline):
    """Transcribe recordings with a speech model of transformers.

    Args:
        model: Granite Speech (also Plus), Qwen3-ASR, Voxtral or Whisper.
        processor: Its processor.
        drafter: How transcripts are drafted; ``None`` decodes plainly. :class:`CTCDrafter` needs a model with a CTC
            head, or brings one.
        acceptance: How drafts are judged; ``None`` is the exact :class:`CoupledAcceptance`.
        presets: Thresholds of entropy and likelihood that suit this model, by preset, in place of the published ones.

    Raises:
        ValueError: If the model is of no known family, or there is nothing to draft with.
    """

    model_cpu_offload_seq = "model"
    _optional_components = ["drafter", "acceptance"]  # noqa: RUF012 - diffusers' form

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        presets: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(model=model, processor=processor, drafter=drafter, acceptance=acceptance)
        self.register_to_config(presets=presets)
        self._check_presets(presets)
        _ = self.adapter

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a saved recogniser, see :meth:`SpecPipeline.from_pretrained`."""
        folder = local_folder(pretrained_model_name_or_path)
        if folder is None:
            folder = Path(cls.download(str(pretrained_model_name_or_path), **download_options(kwargs)))
        index = read_json(folder / "model_index.json")
        if index.get("_class_name") == "SpeechRecognitionPipeline" and kwargs.get("model") is None:
            dtype = kwargs.get("dtype", kwargs.get("torch_dtype", torch.float32))
            kwargs["model"] = load_transformers_model(folder / "model", dtype)
        return super().from_pretrained(folder, **kwargs)

    @property
    def adapter(self) -> SpeechAdapter:
        """The recogniser behind the components."""
        made = self.__dict__.get("_adapter")
        if made is None or made.network is not self.model or made.processor is not self.processor:
            made = ADAPTERS.load(self.model.config.model_type)(self.model, self.processor)
            self.__dict__["_adapter"] = made
        return made

    def _check_presets(self, presets: Mapping[str, Sequence[float]] | None) -> None:
        for name in presets or {}:
            choose_preset(name, presets)

    @torch.no_grad()
    def __call__(
        self,
        audio: Any,
        *,
        sampling_rate: int | None = None,
        task: str | None = None,
        prompt: str | None = None,
        language: str | None = None,
        punctuation: bool = False,
        preset: str | None = None,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | Sequence[int] | None = None,
        speculate: bool = True,
        segment_seconds: float | None = None,
        micro_batch_size: int = 16,
        callback_on_step_end: Callable[..., Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> SpeechOutput:
        """Transcribe recordings.

        Args:
            audio: One recording or a list: a path, the bytes of a file, ``(array, rate)``, a mapping with ``array`` and
                ``sampling_rate``, or arrays and tensors together with ``sampling_rate``.
            sampling_rate: Rate of bare arrays.
            task: ``transcribe`` (default), ``translate``, or ``ask`` (default with a ``prompt``). CTC drafts transcripts
                alone.
            prompt: The family's instruction in other words, or a question.
            language: Spoken language for the families that take one; what to translate to for Granite.
            punctuation: Ask for punctuation and capitals where the family has a prompt for it.
            preset: ``exact``, ``accurate``, ``balanced`` or ``fast``, in place of drafter and rule of the pipeline.
            max_new_tokens: Budget of each segment; by default one that no transcript of its length needs.
            temperature, top_k, top_p: See :class:`SamplingParams`; 0 is greedy.
            generator, seed: Source of the seeds of the recordings.
            speculate: ``False`` decodes plainly.
            segment_seconds: Split every recording at the first pause behind so many seconds; by default only those
                longer than the model hears at once.
            micro_batch_size: Segments decoded together.
            callback_on_step_end, callback_on_step_end_tensor_inputs: As for the image pipelines.

        Returns:
            Texts, words with times, confidences and decisions.

        Raises:
            TypeError, ValueError, FileNotFoundError: For bad arguments and recordings, before the first forward.
        """
        self.check_callback(callback_on_step_end_tensor_inputs)
        sampling = SamplingParams(temperature, top_k, top_p)
        asked = SpeechTask(task or ("ask" if prompt else "transcribe"), prompt, language, punctuation)
        settings = self._settings(asked, sampling, preset, speculate, max_new_tokens, micro_batch_size)
        clips = self._load(audio, sampling_rate)
        seeds = row_seeds(len(clips), generator, seed)
        rows = [self._rows(clip, seed, segment_seconds) for clip, seed in zip(clips, seeds, strict=True)]
        flat = [row for pieces in rows for row in pieces]
        *_, (_, _, stats) = self._transcribe(flat, settings, callback_on_step_end, callback_on_step_end_tensor_inputs)
        listener = Listener(self.adapter, settings)
        with stats.timed("decode"):
            segments = [[listener.finished(row) for row in pieces] for pieces in rows]
        self._warn_of_cuts(stats)
        self.maybe_free_model_hooks()
        return join_segments(segments, [clip.seconds for clip in clips], stats)

    @torch.no_grad()
    def stream(
        self, audio: Any, *, sampling_rate: int | None = None, segment_seconds: float | None = None, **arguments: Any
    ) -> Iterator[PartialTranscript]:
        """Transcribe one recording while it is read, or while it arrives.

        A segment is transcribed as soon as a pause ends it, and its text grows with every forward. What was given out
        never changes, and in the end it is what a call with the same ``segment_seconds`` returns.

        Args:
            audio: A recording as for a call, or an iterator of arrays (n,) at the model's rate, ``sampling_rate``.
            sampling_rate: Rate of bare arrays.
            segment_seconds: A segment ends at the first pause behind this; by default 5, or half of what the model hears
                at once, if that is less.
            arguments: Others of a call: ``task``, ``prompt``, ``language``, ``punctuation``, ``preset``,
                ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``, ``seed``, ``speculate``.

        Yields:
            The transcript so far.
        """
        from mmspec.pipelines.speech_stream import stream_transcript

        if segment_seconds is None:
            segment_seconds = min(5.0, _MIN_SHARE * self.adapter.max_seconds)
        yield from stream_transcript(self, audio, sampling_rate, segment_seconds, arguments)

    def _settings(
        self,
        task: SpeechTask,
        sampling: SamplingParams,
        preset: str | None,
        speculate: bool,
        max_new_tokens: int | None,
        micro_batch_size: int,
    ) -> SpeechSettings:
        """Check everything that does not need the recordings."""
        adapter = self.adapter
        adapter.check(task)
        sampling.check_vocabulary(adapter.vocab_size)
        check_positive("micro_batch_size", micro_batch_size)
        if max_new_tokens is not None:
            check_positive("max_new_tokens", max_new_tokens)
            if max_new_tokens >= adapter.max_positions:
                raise ValueError(
                    f"`max_new_tokens` is {max_new_tokens}, but the model has {adapter.max_positions} positions for "
                    "recording and transcript together."
                )
        drafter, rule = self.choose_method(speculate, sampling)
        if preset is not None:
            drafter, rule = self.preset_parts(preset)
            if not speculate:
                raise ValueError(f"`preset` {preset!r} says how to speculate; leave it out with `speculate=False`.")
        if isinstance(drafter, CTCDrafter):
            self._check_ctc(drafter, task)
        hears = drafter or self.drafter
        listener = hears if isinstance(hears, CTCDrafter) and task.name == "transcribe" else None
        return SpeechSettings(task, sampling, drafter, rule, listener, speculate, max_new_tokens, micro_batch_size)

    def preset_parts(self, preset: str) -> tuple[CTCDrafter, Acceptance]:
        """Drafter and rule of a ``preset``, with this checkpoint's thresholds and this pipeline's CTC model."""
        own = self.drafter if isinstance(self.drafter, CTCDrafter) else None
        return preset_method(choose_preset(preset, self.config.presets), own)

    def _check_ctc(self, drafter: CTCDrafter, task: SpeechTask) -> None:
        adapter = self.adapter
        if task.name != "transcribe":
            raise ValueError(
                f"CTCDrafter drafts what was said, not the answer to `task` {task.name!r}; use `speculate=False`, another "
                "drafter, or `task='transcribe'` if the prompt does ask for a transcript."
            )
        vocabulary = drafter.ctc.vocabulary if drafter.ctc else adapter.ctc
        if vocabulary is None:
            raise ValueError(
                f"{type(adapter.network).__name__} has no CTC head that mmspec can read; give CTCDrafter a `model` and "
                "its `processor`."
            )
        if (task.punctuation or adapter.punctuates) and not (vocabulary.cased and vocabulary.punctuated):
            self.warn_once(
                "The drafts lack capitals or punctuation: the CTC labels have none, but the model writes them. The text "
                "is right, with more forwards; draft with a CTC model that punctuates, or ask for raw text."
            )

    def _load(self, audio: Any, sampling_rate: int | None) -> list[Clip]:
        numbers = isinstance(audio, list) and audio and isinstance(audio[0], (int, float))
        sources = audio if isinstance(audio, list) and not numbers else [audio]
        if not sources:
            raise ValueError("`audio` is an empty list; give at least one recording.")
        rate = self.adapter.sampling_rate
        return [load_audio(source, rate, sampling_rate, number) for number, source in enumerate(sources)]

    def _rows(self, clip: Clip, seed: int, segment_seconds: float | None) -> list[SpeechRow]:
        """The segments of a recording as rows; the j-th has the recording's seed + j."""
        longest = self.adapter.max_seconds
        if segment_seconds is None:
            segments = split(clip.samples, clip.sampling_rate, longest, _MIN_SHARE * longest)
        else:
            segments = split(clip.samples, clip.sampling_rate, longest, segment_seconds, always=True)
        return [
            SpeechRow.of(clip, segment, (seed + place) % (1 << 63))
            for place, segment in enumerate(segments or [Segment(0, 0, "end")])
        ]

    def _transcribe(
        self,
        rows: list[SpeechRow],
        settings: SpeechSettings,
        callback: Callable[..., Any] | None = None,
        tensor_inputs: Sequence[str] = ("tokens",),
    ) -> Iterator[tuple[RowBatch | None, Progress | None, DecodeStats]]:
        """Decide every row; yield after each round, and once at the end with the stats of the call."""
        listener, maker = Listener(self.adapter, settings), BatchMaker(self.adapter, settings)
        start = time.perf_counter()
        for row in rows:
            listener.listen(row)
        heard = time.perf_counter() - start
        parts: list[DecodeStats] = []
        done: dict[int, RowStats] = {}
        for batch in maker.batches(rows):
            for decoder, progress in self._decode(maker, batch, callback, tensor_inputs):
                yield batch, progress, decoder.stats
            parts.append(decoder.stats)
            done |= {id(row): counts for row, counts in zip(batch.rows, decoder.stats.rows, strict=True)}
            if self.interrupt:
                break
        stats = merge_stats(parts) if parts else DecodeStats()
        stats.rows = [done.get(id(row)) or RowStats(finish_reason=row.decision or "interrupted") for row in rows]
        stats.seeds = [row.seed for row in rows]
        stats.seconds["encode"] = heard
        stats.method, stats.guarantee = self._promise(settings)
        yield None, None, stats

    def _decode(
        self, maker: BatchMaker, batch: RowBatch, callback: Callable[..., Any] | None, tensor_inputs: Sequence[str]
    ) -> Iterator[tuple[Decoder, Progress]]:
        """Decode one batch and settle its rows; rows whose draft failed start anew if the drafter says so."""
        ctc = maker.settings.ctc_drafter if batch.draft_lengths is not None else None
        decided = False
        for decoder, progress in self.run_decoders([batch.request], callback, tensor_inputs):
            if not decided:
                decided = True
                maker.decide(batch, decoder, progress)
                if ctc is not None and ctc.config.on_fail == "restart":
                    yield from self._restart(maker, batch, decoder, progress)
                    return
            yield decoder, progress
        maker.settle(batch, progress)

    def _restart(
        self, maker: BatchMaker, batch: RowBatch, decoder: Decoder, progress: Progress
    ) -> Iterator[tuple[Decoder, Progress]]:
        """Settle the rows that were verified whole, and decode the others plainly from their prompts on."""
        maker.settle(batch, progress)
        failed = [place for place, row in enumerate(batch.rows) if row.decision != "verified"]
        if failed:
            again = maker.batch([batch.rows[place] for place in failed], speculate=False)
            *_, (second, latest) = self.run_decoders([again.request])
            maker.settle(again, latest)
            merged = merge_stats([decoder.stats, second.stats])
            for place, counts in zip(failed, second.stats.rows, strict=True):
                merged.rows[place] = counts
            merged.rows = merged.rows[: len(batch.rows)]
            decoder.stats = merged
        yield decoder, progress

    def _promise(self, settings: SpeechSettings) -> tuple[str, Guarantee]:
        """Name and guarantee of what a call did."""
        if settings.drafter is None:
            return "plain", Guarantee.SAME_TOKENS
        ctc = settings.ctc_drafter
        name = short_name(settings.drafter) + (f"-{ctc.config.on_fail}" if ctc else "")
        open_gate = ctc is not None and ctc.gate.threshold > 0
        guarantee = Guarantee.HEURISTIC if open_gate else settings.rule.guarantee
        return f"{name}+{short_name(settings.rule)}", guarantee

    def _warn_of_cuts(self, stats: DecodeStats) -> None:
        if "length" in stats.finish_reasons:
            self.warn_once(
                "A transcript was cut: it reached `max_new_tokens` before its end (finish_reason 'length'); raise it, or "
                "check that the model was made for such recordings."
            )
