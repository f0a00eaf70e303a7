"""Write the trained voice as the folder ``mmspec/tiny-tts`` that ships with the package."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmspec.pipelines.text_to_speech import TextToSpeechPipeline
from mmspec.speech.codec import SpeechCodec
from mmspec.speech.mask_predictor import MaskPredictor
from mmspec.speech.residual_drafter import ResidualDrafter
from mmspec.speech.talker import SpeechTalker
from mmspec.training.asr_card import LICENSE
from mmspec.training.loop import read_progress
from mmspec.training.tts_card import NOTICE, model_card
from mmspec.training.tts_data import read_recordings
from mmspec.training.tts_eval import measure


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Where the stages lie: output folders of ``mmspec train tts``, and the folder of the recordings; ``maskgit`` may be left out.

    The network itself is that of ``durations``; ``talker`` has its measurements, and ``first_talker`` is the run that it went on from.
    """

    data: Path
    quantizer: Path
    codec: Path
    first_talker: Path
    talker: Path
    durations: Path
    drafter: Path
    maskgit: Path | None = None


def export(config: ExportConfig, folder: str | Path, assessment: str = "") -> Path:
    """Write the pipeline with float16 weights, sentences for the bench, measurements and card.

    Args:
        config: The stages.
        folder: Where to write; what else is in it is kept.
        assessment: Paragraph for the card on how the voice sounds.

    Raises:
        FileNotFoundError: If a stage left nothing.
    """
    folder = Path(folder)
    pipe = assemble(config)
    recordings = read_recordings(config.data)
    # stored weights are rounded; what is measured is what ships
    for part in (pipe.talker, pipe.codec, pipe.mask_predictor):
        if part is not None:
            part.half().float()
    measured = measure(pipe, recordings)
    trained = ["codec", "first_talker", "talker", "durations", "drafter", *(["maskgit"] if config.maskgit else [])]
    stages = {name: read_progress(getattr(config, name)) for name in trained}
    reports = {name: _read(getattr(config, name) / "report.json") for name in ("quantizer", *trained)}
    training: dict[str, Any] = {
        "recordings": len(recordings),
        "minutes_of_speech": sum(len(r.waveform) for r in recordings) / 16_000 / 60,
        "stages": stages, "reports": reports, "listening": {k: v for k, v in measured.items() if k != "sentences"},
    }  # fmt: skip
    write_pipeline(pipe, folder)
    _write(folder / "sentences.json", measured["sentences"])
    _write(folder / "training.json", training)
    (folder / "README.md").write_text(model_card(pipe, training, assessment))
    (folder / "NOTICE").write_text(NOTICE)
    (folder / "LICENSE").write_text(LICENSE)
    return folder


def assemble(config: ExportConfig) -> TextToSpeechPipeline:
    """The pipeline of the trained stages, with the sampling that the drafter was trained for."""
    report = _read(config.drafter / "report.json")
    keep = ("temperature", "top_k")
    mask_predictor = None
    if config.maskgit is not None:
        mask_predictor = MaskPredictor.from_pretrained(config.maskgit / "mask_predictor").eval()
    pipe = TextToSpeechPipeline(
        SpeechTalker.from_pretrained(config.durations / "talker").eval(),
        SpeechCodec.from_pretrained(config.codec / "codec").eval(),
        ResidualDrafter.from_pretrained(config.drafter / "drafter"),
        mask_predictor=mask_predictor,
        first={name: report["first"][name] for name in keep},
        rest={name: report["rest"][name] for name in keep},
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def write_pipeline(pipe: TextToSpeechPipeline, folder: Path) -> None:
    """The pipeline with its networks in float16, to be run in float32."""
    for name in ("talker", "codec", "drafter", "mask_predictor"):
        shutil.rmtree(folder / name, ignore_errors=True)
    parts = [pipe.talker, pipe.codec, pipe.drafter.heads, pipe.mask_predictor]
    for part in parts:
        if part is not None:
            part.to(torch.float16)
    pipe.save_pretrained(folder)
    for part in parts:
        if part is not None:
            part.to(torch.float32)
    for path in folder.glob("**/config.json"):
        settings = _read(path)
        settings.pop("_name_or_path", None)  # the folder of the training run, which is nobody's business
        _write(path, settings)


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
