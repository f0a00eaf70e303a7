"""Measure, save and describe a trained image drafter.

Everything is measured with the weights as they are stored, on captions that no training picture was made of. How often
the candidate of each rank is right, given that its parent was, is found in one teacher-forced pass, since the noise that
the target drew a picture with is known; it gives the static tree, and what scores must be divided by to be read as
probabilities. Acceptance lengths are those of real decoding.

Symbols: B pictures, N codes of a picture, V vocabulary.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmspec.core.controllers import WIDTHS
from mmspec.core.guidance import Guidance
from mmspec.core.noise import RowNoise
from mmspec.core.stats import DecodeStats
from mmspec.core.trees import best_static_paths
from mmspec.drafters.base import Drafter
from mmspec.drafters.feature import FOLDER, FeatureDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.pipelines.outputs import ImageOutput
from mmspec.training.image_drafter import (
    ImageDrafterConfig,
    guided_logits,
    held_out_captions,
    read_target,
    unroll,
)
from mmspec.training.loop import read_progress
from mmspec.training.pictures import Pictures, listed_subjects, sample_pictures

logger = logging.getLogger(__name__)

DEPTH, RANKS = 8, 8
STATIC_NODES = 21
DYNAMIC = ((4, 3), (8, 3), (8, 5), (16, 5), (32, 7))
"""Nodes and depths of the dynamic trees that are compared."""
SCALES = torch.logspace(-0.7, 0.7, 29).tolist()


@torch.no_grad()
def measure_ranks(
    pipe: LlamaGenPipeline, drafter: FeatureDrafter, pictures: Pictures, mode: str, batch: int = 8
) -> tuple[list[list[float]], list[float]]:
    """Acceptance by depth and rank, and the scale of each depth's scores.

    Args:
        pipe: The target; ``pictures`` were drawn with its own settings.
        drafter: The drafter.
        pictures: Held-out pictures, all of captions or all of classes.
        mode: ``coupled`` or ``top-k``.
        batch: Pictures of a pass.

    Returns:
        Entry (d, r) is the share of codes that were the candidate of rank r at depth d + 1, for 8 depths and ranks. The
        scales minimise the cross-entropy of the codes under softmax(score / scale).
    """
    config = pipe.config
    guidance, temperature = Guidance(config.guidance_scale), config.temperature or 1.0
    hits = torch.zeros(DEPTH, RANKS)
    surprise = torch.zeros(DEPTH, len(SCALES))
    counts = torch.zeros(DEPTH)
    for first in range(0, len(pictures), batch):
        part = pictures.select(list(range(first, min(first + batch, len(pictures)))))
        example = read_target(pipe, part, both=guidance.branches > 1)
        codes = part.codes.to(example.states.device)
        seeds = part.seeds.to(codes.device)
        noise = RowNoise(seeds, pipe.transformer.config.vocab_size).target(
            torch.zeros_like(seeds), codes.shape[1], 0, 0
        )
        for depth, states in enumerate(unroll(drafter, pipe.transformer, example, min(DEPTH, codes.shape[1] - 1))):
            kept = states[:, example.num_condition_pairs : states.shape[1] - depth]
            scores = guided_logits(pipe.transformer, kept, example.branches, guidance) / temperature
            truth = codes[:, 1 + depth :, None]
            if mode == "coupled":
                scores = scores + noise[:, 1 + depth :]
            own = scores.gather(-1, truth)
            rank = (scores > own).sum(-1).flatten()
            hits[depth] += torch.bincount(rank.clamp_max(RANKS), minlength=RANKS + 1)[:RANKS].cpu()
            counts[depth] += rank.numel()
            for index, scale in enumerate(SCALES):
                surprise[depth, index] -= (scores / scale).log_softmax(-1).gather(-1, truth).sum().cpu()
    seen = int((counts > 0).sum())
    shares = (hits / counts[:, None].clamp_min(1))[:seen].tolist()
    return shares, [round(SCALES[int(row.argmin())], 3) for row in surprise[:seen]]


def calibrate(pipe: LlamaGenPipeline, drafter: FeatureDrafter, pictures: Pictures) -> tuple[FeatureDrafter, dict]:
    """``drafter`` with measured scales and a measured static tree, and the tables behind them."""
    tables: dict[str, Any] = {}
    for mode in ("coupled", "top-k"):
        shares, scales = measure_ranks(pipe, drafter, pictures, mode)
        tables[mode] = {
            "acceptance_by_depth_and_rank": [[round(s, 4) for s in row] for row in shares],
            "scales": scales,
        }
        tables[mode]["choices"] = best_static_paths(shares, STATIC_NODES)
    measured = {mode: table["scales"] for mode, table in tables.items()}
    return drafter.with_settings(calibration=measured, choices=tables["coupled"]["choices"]), tables


def methods(drafter: FeatureDrafter, tables: dict[str, Any]) -> dict[str, FeatureDrafter]:
    """What is compared: chosen drafts, with and without the target's noise, in every tree."""
    chosen: dict[str, FeatureDrafter] = {}
    for mode in ("coupled", "top-k"):
        for length in (2, 4, 7):
            chosen[f"{mode} chain of {length}"] = drafter.with_settings(mode=mode, tree="chain", num_nodes=length + 1)
        for nodes in (8, STATIC_NODES):
            paths = tables[mode]["choices"]
            chosen[f"{mode} static tree of {nodes}"] = drafter.with_settings(
                mode=mode, tree="static", num_nodes=nodes, choices=paths
            )
        for nodes, depth in DYNAMIC:
            chosen[f"{mode} dynamic tree of {nodes}, {depth} deep"] = drafter.with_settings(
                mode=mode, tree="dynamic", num_nodes=nodes, depth=depth
            )
    return chosen


@dataclass
class Tally:
    """What a method did over all captions."""

    equal: bool = True
    tokens: int = 0
    rounds: int = 0
    forwards: int = 0
    draft_forwards: int = 0
    seconds: float = 0.0
    wall: float = 0.0

    def add(self, stats: DecodeStats, equal: bool, seconds: float, wall: float) -> None:
        """Count one picture; the first token of a picture comes from the prefill."""
        self.equal &= equal
        self.tokens += stats.rows[0].tokens - 1
        self.rounds += stats.rows[0].rounds
        self.forwards += stats.forwards
        self.draft_forwards += stats.draft_forwards
        self.seconds += seconds
        self.wall += wall

    def summary(self, plain: Tally, pictures: int) -> dict[str, Any]:
        return {
            "tokens_equal": self.equal,
            "acceptance_length": round(self.tokens / self.rounds, 3),
            "forwards": round(self.forwards / pictures, 1),
            "draft_forwards": round(self.draft_forwards / pictures, 1),
            "time_ratio": round(plain.seconds / self.seconds, 3),
            "wall_ratio": round(plain.wall / self.wall, 3),
        }


@torch.no_grad()
def compare(
    pipe: LlamaGenPipeline, chosen: Mapping[str, Drafter], captions: list[str], seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Decode ``captions`` one by one, every method in turn for each, plain decoding first.

    Returns:
        For each method: whether its codes equal plain decoding's, its ``acceptance_length`` (tokens per verification,
        bonus included), ``forwards`` and ``draft_forwards`` per picture, and how many times as long plain decoding
        takes, by the clock (``wall_ratio``) and in processor time (``time_ratio``; the clock's on other devices).
    """
    clock = time.process_time if pipe.device.type == "cpu" else time.perf_counter
    saved, tallies = pipe.drafter, {name: Tally() for name in ("plain", *chosen)}
    try:
        for name in tallies:  # once unseen: the first call of a method may measure the machine
            pipe.drafter = chosen.get(name)
            pipe(captions[0], seed=seed, output_type="tokens", speculate=name != "plain")
        for row, caption in enumerate(captions):
            plain: Any = None
            for name, tally in tallies.items():
                pipe.drafter = chosen.get(name)
                begin, wall = clock(), time.perf_counter()
                output = pipe(caption, seed=seed + row, output_type="tokens", speculate=name != "plain")
                seconds, wall = clock() - begin, time.perf_counter() - wall
                assert isinstance(output, ImageOutput)
                assert output.stats is not None
                tokens = torch.as_tensor(output.tokens)
                plain = tokens if plain is None else plain
                tally.add(output.stats, torch.equal(tokens, plain), seconds, wall)
    finally:
        pipe.drafter = saved
    return {name: tallies[name].summary(tallies["plain"], len(captions)) for name in chosen}


def prior_of(measured: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Tokens per forward by width, for the cost-aware controller: those of the best coupled dynamic tree of each."""
    prior = {"1": 1.0}
    for nodes, depth in DYNAMIC:
        if nodes in WIDTHS:
            length = measured[f"coupled dynamic tree of {nodes}, {depth} deep"]["acceptance_length"]
            prior[str(nodes)] = max(prior.get(str(nodes), 1.0), length)
    return prior


def finish(config: ImageDrafterConfig, pipe: LlamaGenPipeline, drafter: FeatureDrafter, seconds: float) -> Path:
    """Round the weights to half precision, measure the drafter, and write it with its report and card.

    Returns:
        The folder of the drafter.
    """
    from mmspec.training.drafter_card import drafter_card

    drafter = drafter.to(torch.float16).to(torch.float32).requires_grad_(False)
    captions = held_out_captions(config)[:16]
    steps = int(read_progress(config.output)["steps"])
    report: dict[str, Any] = {"steps": steps, "minutes": round(seconds / 60, 2), "held_out": captions}
    if captions:
        subjects = listed_subjects(4 * len(captions), config.seed + 1, captions, None)
        pictures = sample_pictures(pipe, subjects, config.output / "held-out", config.seed + 1)
        drafter, report["ranks"] = calibrate(pipe, drafter, pictures)
        chosen = methods(drafter, report["ranks"])
        own = {} if pipe.drafter is None else {"the target's own drafter": pipe.drafter}
        report["methods"] = compare(pipe, {**chosen, **own}, captions)
        if not all(method["tokens_equal"] for method in report["methods"].values()):
            raise RuntimeError("A draft changed what was decoded; this is a fault of mmspec, not of the training.")
        report["chosen"] = max(chosen, key=lambda name: report["methods"][name]["time_ratio"])
        drafter = chosen[report["chosen"]].with_settings(prior=prior_of(report["methods"]))
    folder = config.output / FOLDER
    with_half = drafter.with_settings().to(torch.float16)
    with_half.save_pretrained(folder)
    (config.output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder / "README.md").write_text(drafter_card(config, drafter, report))
    logger.info("drafter: %s", report.get("methods"))
    return folder
