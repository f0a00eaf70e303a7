"""The common base of all pipelines: loading, swapping drafters and rules, and opening a decoder for a call.

A call keeps its state in local objects only, so two calls, a call after an exception and two threads give the same
results. What stays on the pipeline is configuration and measured timings, which never change a token.
"""

from __future__ import annotations

import inspect
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers import ConfigMixin, DiffusionPipeline
from diffusers.pipelines.pipeline_loading_utils import LOADABLE_CLASSES, _fetch_class_library_tuple
from diffusers.utils import logging
from torch import Tensor

import mmspec
from mmspec.acceptance.base import Acceptance, RuleSetup, TokenVectors
from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.core.controllers import WIDTHS, CostAwareController, CostCurve, FixedController
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import NoDraft
from mmspec.core.grammar import Grammar, GrammarSession
from mmspec.core.guidance import Guidance
from mmspec.core.loop import Decoder, Progress, SpeculativeDecoder
from mmspec.core.noise import RowNoise
from mmspec.core.path_laws import ConditionedTarget, PathLaw
from mmspec.core.sampling import SamplingParams
from mmspec.core.scaffold import ScaffoldLaw, ScaffoldSession
from mmspec.core.stats import DecodeStats
from mmspec.core.stopping import Stopping
from mmspec.core.verify import AcceptanceRule
from mmspec.drafters.base import Drafter, DraftSetup, short_name
from mmspec.models.loading import check_weights, download_options, local_folder, read_json
from mmspec.pipelines.scheduled import open_scheduled
from mmspec.runner.compiling import compile_static
from mmspec.runner.memory import MemoryEstimate, check_memory, estimate_memory
from mmspec.runner.runner import DecoderModel, Runner
from mmspec.schedules.base import Schedule

logger = logging.get_logger(__name__)

# diffusers writes ["mmspec", Class] into model_index.json for classes of libraries listed here, whatever their module
_METHODS = ["save_pretrained", "from_pretrained"]
LOADABLE_CLASSES.setdefault("mmspec", dict.fromkeys(["ModelMixin", "SchedulerMixin", "PreTrainedModel"], _METHODS))

_REMEDY = "Use a smaller `micro_batch_size`, a smaller drafter window, or a lower dtype."
RUNNER_MODES = ("eager", "compile", "cuda-graph")


@dataclass
class DecodeRequest:
    """Everything that opening a decoder needs; built by a pipeline for each micro-batch.

    Attributes:
        model: Builds the decoder model of a network on a device: the target, or a draft model of the same kind.
        seeds: Row seeds.
        sampling, stopping, guidance: How tokens are drawn, when rows end, how branches merge.
        drafter, rule: ``None`` drafter is plain decoding.
        schedule: Another order of decoding, in place of a drafter; ``None`` is one cell after the other.
        row_length: Tokens per grid row, if the output is a grid.
        row_start: Order index of the grid's first token.
        frame_length: Tokens per frame, if the output is a clip.
        grammar: Tokens that each order index allows; ``None`` allows all everywhere.
        path_laws: What changes the law of a token by the tokens before it.
        prompts: All prompt tokens of each row, for such laws.
        token_ids: The model's own id of every token of the loop (V,); ``None`` where they are the same.
        prompt_ids: Prompt tokens in the target's vocabulary (B, P), right-padded with -1, if there are any.
        cache_bytes_per_slot, decode_bytes: For the memory estimate.
    """

    model: Callable[[Any, torch.device], DecoderModel]
    network: Any
    seeds: list[int]
    sampling: SamplingParams
    stopping: Stopping
    guidance: Guidance
    drafter: Drafter | None
    rule: AcceptanceRule
    schedule: Schedule | None = None
    row_length: int | None = None
    row_start: int = 0
    frame_length: int | None = None
    grammar: Grammar | None = None
    path_laws: tuple[PathLaw, ...] = ()
    prompts: tuple[tuple[int, ...], ...] = ()
    token_ids: Tensor | None = None
    prompt_ids: Tensor | None = None
    cache_bytes_per_slot: int = 0
    decode_bytes: int = 0

    def own_ids(self, progress: Progress) -> Tensor:
        """Committed tokens (B, M) as the model numbers them, zero beyond each row's length."""
        tokens = progress.tokens
        if self.token_ids is None:
            return tokens
        place = torch.arange(tokens.shape[1], device=tokens.device)
        there = place < torch.tensor(progress.lengths, device=tokens.device)[:, None]
        return torch.where(there, self.token_ids.to(tokens.device)[tokens], 0)


class SpecPipeline(DiffusionPipeline):
    """Base of mmspec's pipelines, a diffusers pipeline with two swappable parts.

    ``pipe.drafter`` and ``pipe.acceptance`` are to mmspec what ``scheduler`` is to diffusers: small saved objects that
    are replaced by assignment. ``drafter=None`` decodes plainly; ``acceptance=None`` means :class:`CoupledAcceptance`.
    """

    _swappable_components: ClassVar[list[str]] = ["drafter", "acceptance"]
    _optional_components: ClassVar[list[str]] = ["drafter", "acceptance"]
    _callback_tensor_inputs: ClassVar[list[str]] = ["tokens", "lengths"]

    source: str | None = None
    """What the pipeline was loaded from, where drafters with weights are looked for; never saved."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a pipeline: an embedded name (``mmspec/emoji-t2i``), a folder, or a hub id.

        Args:
            pretrained_model_name_or_path: What to load. Only a hub id touches the network.
            kwargs: As for ``DiffusionPipeline.from_pretrained``. ``dtype`` defaults to float32, in which exactness is
                promised; ``drafter`` and ``acceptance`` replace the saved ones, whose weights are then not read.

        Raises:
            ValueError: If the checkpoint is unknown, damaged, or a tensor is missing or superfluous.
        """
        folder = local_folder(pretrained_model_name_or_path)
        if folder is None:
            folder = Path(cls.download(str(pretrained_model_name_or_path), **download_options(kwargs)))
        index = read_json(folder / "model_index.json")
        pipeline_class = getattr(mmspec, index.get("_class_name", ""), None)
        if not (inspect.isclass(pipeline_class) and issubclass(pipeline_class, cls)):
            raise ValueError(f"{folder} holds a {index.get('_class_name')!r}, which is not a {cls.__name__}.")
        if pipeline_class is not cls:
            return pipeline_class.from_pretrained(folder, **kwargs)
        cls._check_components(folder, index, kwargs)
        # diffusers wants a replacement to share the saved component's base class; ours may or may not have weights
        swaps = {name: kwargs.pop(name) for name in cls._swappable_components if name in kwargs}
        if "torch_dtype" not in kwargs:
            kwargs.setdefault("dtype", torch.float32)
        pipe = super().from_pretrained(folder, **kwargs, **dict.fromkeys(swaps))
        for name, component in swaps.items():
            setattr(pipe, name, component)
        _forget_place(pipe)
        pipe.source = str(pretrained_model_name_or_path)
        return pipe

    @classmethod
    def _check_components(cls, folder: Path, index: dict[str, Any], given: dict[str, Any]) -> None:
        expected, _ = cls._get_signature_keys(cls)
        for name in sorted(set(expected) & index.keys() - given.keys()):
            entry = index[name]
            if entry[1] is None:
                continue
            library = __import__(entry[0]) if entry[0] in ("mmspec", "diffusers", "transformers") else None
            component = getattr(library, entry[1], None)
            if component is None:
                raise ValueError(f"{folder} wants {entry[0]}.{entry[1]} for `{name}`, which does not exist here.")
            if inspect.isclass(component) and issubclass(component, torch.nn.Module):
                check_weights(folder / name, component)

    def to_json_string(self) -> str:
        """The configuration as it is saved: without the folder of this machine that the pipeline came from."""
        content = json.loads(super().to_json_string())
        if (place := content.get("_name_or_path")) and Path(place).is_dir():
            del content["_name_or_path"]
        return json.dumps(content, indent=2, sort_keys=True) + "\n"

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "drafter" and value is not None and not isinstance(value, Drafter):
            raise TypeError(f"`drafter` must be a drafter object such as JacobiDrafter() or None, got {value!r}.")
        if name == "acceptance" and value is not None and not isinstance(value, Acceptance):
            raise TypeError(f"`acceptance` must be a rule object such as CoupledAcceptance() or None, got {value!r}.")
        if name == "schedule" and name not in self._swappable_components:
            raise AttributeError(f"{type(self).__name__} decodes in raster order only; it takes no `schedule`.")
        if name == "schedule" and value is not None and not isinstance(value, Schedule):
            raise TypeError(f"`schedule` must be a schedule object such as ZipARSchedule() or None, got {value!r}.")
        if name in self._swappable_components and hasattr(self, "config"):
            # diffusers records a component when it is registered; one that is attached later must be recorded too
            recorded = (None, None) if value is None else _fetch_class_library_tuple(value)
            self.register_to_config(**{name: recorded})
        super().__setattr__(name, value)

    @property
    def interrupt(self) -> bool:
        """Whether the running call was asked to stop; a callback sets ``pipe._interrupt = True``."""
        return getattr(self, "_interrupt", False)

    def costs(self, branches: int) -> CostCurve:
        """Measured seconds of this pipeline's forwards by (samples, width), with ``branches`` model rows a sample."""
        return self.__dict__.setdefault("_costs", {}).setdefault(branches, CostCurve())

    @property
    def runner_mode(self) -> str:
        return self.__dict__.get("_runner_mode", "eager")

    def set_runner(self, mode: str = "eager") -> None:
        """Choose how the target's forward runs, for all later calls.

        Args:
            mode: ``eager``; ``compile``: ``torch.compile`` with few static shapes; ``cuda-graph``: compiled and
                captured. Shapes are padded to buckets, which never changes a token.

        Raises:
            ValueError: For an unknown mode, CUDA graphs without CUDA, or together with CPU offload.
        """
        if mode not in RUNNER_MODES:
            raise ValueError(f"Unknown runner mode {mode!r}; choose one of {', '.join(RUNNER_MODES)}.")
        if mode == "cuda-graph" and self._execution_device.type != "cuda":
            raise ValueError("Runner mode 'cuda-graph' needs the pipeline on a CUDA device; call `pipe.to('cuda')`.")
        if mode != "eager" and getattr(self, "_all_hooks", None):
            raise ValueError(f"Runner mode {mode!r} cannot capture offloaded models; disable CPU offload first.")
        self.__dict__["_runner_mode"] = mode
        self.__dict__.pop("_compiled", None)
        self.__dict__.pop("_costs", None)

    def compiled(self, network: Any) -> Any:
        """``network`` as the runner calls it: itself, or its compiled form, made once."""
        if self.runner_mode == "eager":
            return network
        cached = self.__dict__.setdefault("_compiled", {})
        if id(network) not in cached:
            mode = "reduce-overhead" if self.runner_mode == "cuda-graph" else "default"
            cached[id(network)] = compile_static(network, mode)
        return cached[id(network)]

    def token_vectors(self) -> TokenVectors | None:
        """The vectors behind the target's tokens, for rules that relax by them; ``None`` if tokens have none."""
        return None

    def choose_method(self, speculate: bool, sampling: SamplingParams) -> tuple[Drafter | None, AcceptanceRule]:
        """The drafter and rule of a call, checked against one another and bound to the target."""
        rule, drafter = self.acceptance or CoupledAcceptance(), self.drafter
        if not speculate or drafter is None:
            return None, CoupledAcceptance()
        rule.check(drafter.law, sampling, type(drafter).__name__)
        setup = RuleSetup(
            law=drafter.law, sampling=sampling, device=self._execution_device, max_siblings=drafter.max_siblings,
            vectors=self.token_vectors,
        )  # fmt: skip
        return drafter, rule.bind(setup)

    def estimate(self, request: DecodeRequest, prompt_width: int, vocab_size: int) -> MemoryEstimate:
        """Bytes that ``request`` needs on top of the weights, for prompts of ``prompt_width`` slots."""
        nodes = request.drafter.nodes_within(request.stopping.max_new_tokens) if request.drafter else 1
        return estimate_memory(
            rows=len(request.seeds),
            branches=request.guidance.branches,
            capacity=prompt_width + request.stopping.max_new_tokens + nodes,
            max_nodes=nodes,
            vocab_size=vocab_size,
            cache_bytes_per_slot=request.cache_bytes_per_slot,
            decode=request.decode_bytes,
        )

    def open_decoder(self, request: DecodeRequest) -> Any:
        """Check memory and build the decoder of ``request``; nothing of it stays on the pipeline."""
        if request.schedule is not None:
            return open_scheduled(request, self._execution_device, buckets=self.runner_mode != "eager")
        rows, drafter = len(request.seeds), request.drafter
        nodes = drafter.nodes_within(request.stopping.max_new_tokens) if drafter else 1
        device = self._execution_device
        model = request.model(request.network, device)
        check_memory(self.estimate(request, model.prompt.width, model.vocab_size), device, _REMEDY)
        budget = request.stopping.max_new_tokens
        options: dict[str, Any] = {"buckets": self.runner_mode != "eager", "grammar": request.grammar}
        target = Runner(model, request.guidance, budget, nodes, **options)

        def draft_target(network: Any) -> Runner:
            return Runner(request.model(network, network.device), request.guidance, budget, nodes, **options)

        session: Any = NoDraft()
        controller: Any = FixedController(1)
        stats = DecodeStats(
            method="plain", guarantee=request.rule.guarantee, seeds=list(request.seeds),
            step_tv_bound=request.rule.step_tv_bound,
        )  # fmt: skip
        if drafter is not None:
            setup = DraftSetup(
                num_rows=rows, vocab_size=target.vocab_size, device=device, max_new_tokens=budget,
                needs_law=request.rule.needs_law, row_length=request.row_length, row_start=request.row_start,
                frame_length=request.frame_length, grammar=target.grammar, prompt_ids=request.prompt_ids, draft_target=draft_target, runner=target,
            )  # fmt: skip
            costs = self.costs(request.guidance.branches)
            session, controller = drafter.session(setup), drafter.controller(costs)
            if target.grammar is not None:
                session = GrammarSession(session, target.grammar)
            if isinstance(controller, CostAwareController) and not costs.covers(rows):
                self.measure_costs(request, nodes)
            stats.method = f"{short_name(drafter)}+{request.rule.name}"
        laws = [law.open(request.prompts) for law in request.path_laws]
        if getattr(session, "revisable", False) and not request.rule.needs_law:
            for law in laws:
                if drafter is not None and isinstance(law, ScaffoldLaw):
                    session = ScaffoldSession(session, law)
        noise = RowNoise(torch.tensor(request.seeds, device=device), target.vocab_size)
        return SpeculativeDecoder(
            ConditionedTarget(target, laws) if laws else target,
            session,
            request.rule,
            controller,
            noise,
            request.sampling,
            request.stopping,
            stats,
        )

    def measure_costs(self, request: DecodeRequest, largest: int, repeats: int = 3) -> dict[int, float]:
        """Time a target forward of every width at half the output's length, compiling or capturing it on the way.

        The cost-aware controller needs the curve of this machine; it is measured at the first call of a batch size.

        Returns:
            Seconds by width, up to ``largest``; also kept in :meth:`costs`.
        """
        rows, budget = len(request.seeds), request.stopping.max_new_tokens
        costs = self.costs(request.guidance.branches)
        widths = [width for width in WIDTHS if width <= min(largest, budget)]
        model = request.model(request.network, self._execution_device)
        target = Runner(model, request.guidance, budget, widths[-1], buckets=self.runner_mode != "eager")
        device = target.prefill().logits.device
        target.cache.lengths = target.cache.lengths + budget // 2
        for width in widths:
            draft = Draft(torch.zeros(rows, width, dtype=torch.long, device=device), DraftLaw.DETERMINISTIC)
            for repeat in range(repeats + 1):
                start = time.perf_counter()
                target.verify(draft, budget // 2 + 1)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if repeat:  # the first one allocates and compiles
                    costs.add(rows, width, time.perf_counter() - start)
        measured = {width: costs.get(rows, width) for width in widths}
        return {width: seconds for width, seconds in measured.items() if seconds is not None}

    def run_decoders(
        self,
        requests: Sequence[DecodeRequest],
        callback: Callable[..., Any] | None = None,
        tensor_inputs: Sequence[str] = ("tokens",),
    ) -> Iterator[tuple[Decoder, Progress]]:
        """Decode the micro-batches one after the other; yield each decoder with its progress after every round."""
        total = sum(len(r.seeds) * r.stopping.max_new_tokens for r in requests)
        step = 0
        self._interrupt = False
        with self.progress_bar(total=total) as bar:
            for request in requests:
                decoder = self.open_decoder(request)
                done = 0
                for progress in decoder.steps():
                    bar.update(sum(progress.lengths) - done)
                    done = sum(progress.lengths)
                    if callback is not None:
                        values = {"tokens": request.own_ids(progress), "lengths": progress.lengths}
                        callback(self, step, min(progress.lengths), {name: values[name] for name in tensor_inputs})
                    step += 1
                    decoder.interrupted = self.interrupt
                    yield decoder, progress
                if request.drafter is not None:
                    self._report_useless(decoder.stats)
                if self.interrupt:
                    return

    def _report_useless(self, stats: DecodeStats) -> None:
        """Say once if drafting brings nothing, since the output alone does not show it."""
        rounds = sum(row.rounds for row in stats.rows)
        drafted = sum(row.drafted for row in stats.rows)
        if rounds >= 16 and drafted >= rounds and stats.acceptance_rate * drafted < 0.02 * rounds:
            self.warn_once(
                f"Speculation brings nothing here: {type(self.drafter).__name__} had {stats.acceptance_rate:.1%} of its "
                "draft tokens accepted. The output is right, but plain decoding is as fast; check that the drafter was "
                "made for this model."
            )

    def warn_once(self, message: str) -> None:
        """Warn about a cause the first time this pipeline meets it."""
        seen: set[str] = self.__dict__.setdefault("_warned", set())
        if (cause := message.partition(":")[0]) not in seen:
            seen.add(cause)
            warnings.warn(message, stacklevel=3)

    def to(self, *args: Any, **kwargs: Any) -> SpecPipeline:
        """Move all components, the weights of a drafter included."""
        super().to(*args, **kwargs)
        if self.drafter is not None:
            self.drafter.to(*args, **kwargs)
        return self

    def check_callback(self, tensor_inputs: Sequence[str]) -> None:
        """Raise ValueError if a callback wants tensors that there are not."""
        if unknown := [name for name in tensor_inputs if name not in self._callback_tensor_inputs]:
            raise ValueError(
                f"`callback_on_step_end_tensor_inputs` has {unknown}; legal are {', '.join(self._callback_tensor_inputs)}."
            )


def _forget_place(pipe: SpecPipeline) -> None:
    """Drop the folders of this machine that diffusers notes in configurations and would save again."""
    for part in (pipe, *pipe.components.values()):
        if isinstance(part, ConfigMixin) and (place := part.config.get("_name_or_path")) and Path(place).is_dir():
            part.register_to_config(_name_or_path="")
