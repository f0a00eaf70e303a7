"""The model card of the embedded voice, filled with what was measured."""

from __future__ import annotations

from typing import Any

from mmspec.pipelines.text_to_speech import TextToSpeechPipeline

NOTICE = """\
The weights in this folder are licensed under the Creative Commons Attribution-ShareAlike 3.0 licence (see LICENSE); the
code of mmspec is not. They imitate the voice of the recordings that they were made from:

    Asterisk core sounds, version 1.6.1, published by Digium, Inc.
    English: copyright 2003-2010 Allison Smith (http://www.theivrvoice.com), CC-BY-SA-3.0.
    Debian packages asterisk-core-sounds-en and asterisk-core-sounds-en-g722. Decoded from G.722 and trimmed.

The recordings are not part of this folder.
"""

CARD = """\
---
license: cc-by-sa-3.0
language: en
library_name: mmspec
pipeline_tag: text-to-speech
tags: [text-to-speech, speculative-decoding, residual-vector-quantization]
---

# mmspec/tiny-tts

A very small voice: a talker and a code predictor in the layout of Qwen3-TTS but for the text, which lies beside the frames with planned durations, and a codec with {books} codes a frame. It exists so
that mmspec's demonstration, tests and benchmarks run a real, trained model anywhere, in seconds, without a download. It was over-fitted on
purpose to {recordings} telephone prompts ({minutes:.1f} minutes) of one speaker: it repeats those, and other texts badly.

Input: characters (a-z, apostrophe, space, comma, full stop). Numbers and a few symbols are spelt out first.

## Parts

| folder | what | parameters | stored |
| --- | --- | --- | --- |
| `talker` | {layers} layers, width {width}{stack}; predictor: {inner_layers} layers, width {inner_width} | {talker:,} | float16 |
| `codec` | {frame_rate:g} frames a second, {books} codebooks of {codes}; causal decoder with inverse transform, 16 kHz | {codec:,} | float16 |
| `drafter` | `ResidualDrafter`, {kind} | {heads:,}, {share:.2%} of the talker's | float16 |
{mask_part}

Run it in float32. Recommended sampling, which a call uses by default: code 0 temperature {first_temperature:g}, top-k
{first_top_k}; residual codes temperature {rest_temperature:g}, top-k {rest_top_k}.

## Measured

Word error rate of pocketsphinx 5.1.1, an independent recogniser, after Whisper's basic normaliser:

| what it heard | items | WER | CER |
| --- | --- | --- | --- |
{rows}

*codec* is what the codec makes of the recordings, which the voice cannot surpass. *phrases* are pairs of prompts of three to six words, *words* are three of
one or two, that were never recorded together (their recordings are spliced); the recogniser is bad at single words. Held-out sentences, and those that
resemble them, were kept from training; an over-fitted voice is not expected to read them.

| codec | log-mel distance, nats | SI-SDR, dB |
| --- | --- | --- |
| trained recordings | {codec_mel:.3f} | {codec_sdr:.1f} |
| held-out recordings | {codec_mel_out:.3f} | {codec_sdr_out:.1f} |

| cross-entropy, nats | code 0 | residual codes |
| --- | --- | --- |
| trained recordings | {first:.2f} | {rest:.2f} |
| held-out recordings | {first_out:.2f} | {rest_out:.2f} |

Planned durations differ from the alignment by {character:.2f} frames a character on trained recordings, {character_out:.2f} on held-out ones.

{mask_measured}{assessment}

## Training

| stage | steps | minutes |
| --- | --- | --- |
{stages}

on two shared cores of a server processor, one thread each; minutes are wall time on a busy machine. Characters were aligned with `mmspec/tiny-asr`. Codes by k-means with a price on rare ones, then AdamW with a
cosine schedule.

```
mmspec train tts data --data voice
mmspec train tts alignment --data voice
mmspec train tts quantizer --data voice --output runs/quantizer
mmspec train tts codec --data voice --quantizer runs/quantizer --output runs/codec --steps {codec_steps}
mmspec train tts talker --data voice --quantizer runs/quantizer --output runs/first-talker --steps {first_talker_steps}
mmspec train tts talker --data voice --quantizer runs/quantizer --output runs/talker --steps {talker_steps} --set start_from=runs/first-talker --set misplaced=1.5 --set learning_rate=6e-4
mmspec train tts durations --data voice --quantizer runs/quantizer --talker runs/talker --output runs/durations --steps {durations_steps}
mmspec train tts drafter --data voice --quantizer runs/quantizer --talker runs/durations --output runs/drafter --steps {drafter_steps} --set kind={kind} --set first_temperature={first_temperature:g} --set rest_temperature={rest_temperature:g}
{mask_command}mmspec train tts export --data voice --quantizer runs/quantizer --codec runs/codec --first-talker runs/first-talker --talker runs/talker --durations runs/durations --drafter runs/drafter{mask_option} -o tiny-tts
```

Data and licence: see NOTICE.
"""


MASK_PART = '| `mask_predictor` | MaskGIT, {layers} layers, width {width}; for `depth="maskgit"` | {parameters:,} | float16 |\n'
MASK_MEASURED = (
    "`mask_predictor` fills residual codes in parallel, by a law of its own; cross-entropy of masked codes: {trained:.2f} nats on "
    "trained recordings, {held_out:.2f} on held-out ones.\n\n"
)
MASK_COMMAND = "mmspec train tts maskgit --data voice --quantizer runs/quantizer --talker runs/durations --output runs/maskgit --steps {steps}\n"


def mask_lines(pipe: TextToSpeechPipeline, training: dict[str, Any]) -> dict[str, str]:
    """What the card says of a mask predictor; nothing where there is none."""
    if pipe.mask_predictor is None:
        return dict.fromkeys(("mask_part", "mask_measured", "mask_command", "mask_option"), "")
    config, report = pipe.mask_predictor.config, training["reports"]["maskgit"]
    losses = {name: report[name]["masked_code_loss"] for name in ("trained", "held_out")}
    return {
        "mask_part": MASK_PART.format(
            layers=config.num_layers, width=config.hidden_size, parameters=_count(pipe.mask_predictor)
        ),
        "mask_measured": MASK_MEASURED.format(**losses),
        "mask_command": MASK_COMMAND.format(steps=training["stages"]["maskgit"]["steps"]),
        "mask_option": " --maskgit runs/maskgit",
    }


def model_card(pipe: TextToSpeechPipeline, training: dict[str, Any], assessment: str) -> str:
    """The card of ``pipe`` with the measurements in ``training``."""
    reports, listening, stages = training["reports"], training["listening"], training["stages"]
    talker, codec, heads = pipe.talker.config, pipe.codec.config, pipe.drafter.heads
    rows = [
        f"| {name.replace('_', ' ')} | {entry['items']} | {entry['wer']:.3f} | {entry['cer']:.3f} |"
        for name, entry in listening.items()
        if isinstance(entry, dict) and "wer" in entry
    ]
    steps = [f"| {name} | {entry['steps']} | {entry['minutes']:.0f} |" for name, entry in stages.items()]
    sampling = {f"{part}_{name}": (getattr(pipe.config, part) or {}).get(name, "-") for part in ("first", "rest") for name in ("temperature", "top_k")}  # fmt: skip
    return CARD.format(
        books=codec.num_codebooks, codes=codec.num_codes, frame_rate=pipe.codec.frame_rate,
        recordings=training["recordings"], minutes=training["minutes_of_speech"], layers=talker.num_layers,
        stack=f", {talker.frame_stack} frames a step" if talker.frame_stack > 1 else "", width=talker.hidden_size, inner_layers=talker.predictor_layers, inner_width=talker.predictor_hidden_size,
        talker=_count(pipe.talker), codec=_count(pipe.codec), heads=_count(heads), kind=pipe.drafter.kind,
        share=_count(heads) / _count(pipe.talker), rows="\n".join(rows), stages="\n".join(steps),
        codec_mel=reports["codec"]["trained"]["mel_distance"], codec_sdr=reports["codec"]["trained"]["si_sdr"],
        codec_mel_out=reports["codec"]["held_out"]["mel_distance"], codec_sdr_out=reports["codec"]["held_out"]["si_sdr"],
        first=reports["talker"]["trained"]["first_code_loss"], rest=reports["talker"]["trained"]["residual_code_loss"],
        first_out=reports["talker"]["held_out"]["first_code_loss"],
        rest_out=reports["talker"]["held_out"]["residual_code_loss"], assessment=assessment,
        codec_steps=stages["codec"]["steps"], talker_steps=stages["talker"]["steps"], first_talker_steps=stages["first_talker"]["steps"],
        drafter_steps=stages["drafter"]["steps"], durations_steps=stages["durations"]["steps"],
        character=reports["durations"]["trained"]["character"], character_out=reports["durations"]["held_out"]["character"], **sampling, **mask_lines(pipe, training),
    ).replace("\n\n\n", "\n\n")  # fmt: skip


def _count(module: Any) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())
