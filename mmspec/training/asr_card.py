"""The model card of the embedded speech recogniser, filled with what was measured."""

from __future__ import annotations

from typing import Any

from mmspec.speech.tiny_asr import TinyAsrModel

NOTICE = """\
The weights and the recordings in this folder are licensed under the Creative Commons Attribution-ShareAlike 3.0
licence (see LICENSE); the code of mmspec is not.

They were made from, and the files samples/human-*.flac and samples/sequence-*.flac are (joined) copies of,

    Asterisk core sounds, version 1.6.1, published by Digium, Inc.
    English and Spanish: copyright 2003-2010 Allison Smith (http://www.theivrvoice.com), CC-BY-SA-3.0.
    French: copyright 2006-2008 June Wallack (http://www.junewallack.com), CC-BY-SA-3.0.
    Italian: copyright 2012 Carlo Flora (http://www.carloflora.com), CC-BY-3.0.
    Russian: copyright 2010 Maxim (http://www.ivrvoice.ru), CC-BY-3.0.
    Debian packages asterisk-core-sounds-{en,es,fr,it,ru}-g722. Decoded from G.722, trimmed, some joined.

Texts also came from the King James Bible (public domain) and from WordNet 3.0, copyright 2006 by Princeton University
(all rights reserved; use, copying and distribution permitted under the WordNet 3.0 licence). Synthetic speech was made
with flite (BSD-like licence), espeak-ng (GPL-3, a program whose output it does not cover) and Piper's voice joe (CC0 by
its model card); samples/synthetic-*.flac are such. None of those programs is part of this distribution.
"""

LICENSE = """\
Creative Commons Attribution-ShareAlike 3.0 Unported (CC-BY-SA-3.0)

You are free to share and to adapt the contents of this folder, also commercially, if you attribute them as NOTICE
says, mark changes, and license what you build upon them under the same or a compatible licence.

The licence: https://creativecommons.org/licenses/by-sa/3.0/legalcode
"""

MODEL_CARD = """\
---
license: cc-by-sa-3.0
language: en
library_name: mmspec
pipeline_tag: automatic-speech-recognition
tags: [speech-recognition, speculative-decoding, ctc]
---

# mmspec/tiny-asr

A very small speech recogniser: a CTC conformer whose text drafts, and a language model that reads the conformer's
output and verifies. It exists so that mmspec's demonstration, tests and benchmarks run a real, trained recogniser
anywhere, in seconds, without a download. It knows one person well (the voice of the Asterisk telephone prompts), in
studio quality and telephone language, and the synthetic voices it was trained on; do not use it for anyone else.

## Parts

| folder | what | parameters | stored |
| --- | --- | --- | --- |
| `encoder` | `GraniteSpeech5ForCTC`: {layers} conformer blocks, width {width}, 25 frames a second, {labels} letters | {encoder:,} | float16 |
| `projector` | joins {stack} frames, sees the {stack} before and after | {projector:,} | float16 |
| `decoder` | `LlamaForCausalLM`: {decoder_layers} layers, width {decoder_width} | {decoder:,} | float16 |
| `tokenizer` | 4 marks and {letters} letters | | |
| `feature_extractor` | {mels} log-mel bands, 10 ms, in pairs; relative to the loudest | | |
| `drafter` | reads the CTC posterior together with a 5-gram of letters, counted on the texts of the training | | counts |

The language model is prompted with `<s>`, the audio embeddings and `<text>`, and answers with the transcript and
`</s>`: lower case words of a-z and apostrophes, numbers and symbols spelt out. Recordings longer than 5 seconds are split
at a pause. Run it in float32.

## Measured

Word error rates after Whisper's basic normaliser, by jiwer, on three sets that were never trained on:

| set | recordings, words | CTC alone | plain decoding | exact | accurate | balanced | fast | pocketsphinx 5.1.1 |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

* **human**: sentences of the human speaker that were held out together with every prompt that contains them or
  resembles them (word sequence similarity above 0.8). Shorter phrases of theirs can occur in other prompts, and some
  sentences were recorded twice.
* **sequence**: recordings of single digits, letters, numbers, months and code words by the same speaker, joined to
  {sequences} sequences that training never joins. The single recordings are in the training: only their sequence is new.
* **synthetic**: held-out sentences (WordNet, King James Bible, generated) by the synthetic voices of the training.

`mmspec train asr sets` writes all three again; `samples/` holds {samples} of their recordings with transcripts.
*exact*, *accurate*, *balanced* and *fast* are the presets of CTC-drafted decoding; *exact* writes what plain decoding
writes, the others accept more of the draft and may differ.

{assessment}

## Training

| stage | steps | minutes |
| --- | --- | --- |
{stages}

on two shared cores of a server processor, bf16 autocast. AdamW, cosine schedule. With a limit in minutes the result
depends on how fast the machine is; give `--steps` to be able to get the same weights again.

1. *Reader*: from text alone, the language model learns to write down sentences that are spelt to it in imitated CTC
   probabilities with slips, so it knows more words than the recordings have.
2. *CTC*: the encoder learns letters, with CTC on its middle and last layer. Other languages go through a head that is
   not kept.
3. *Joint*: all parts together, on transcripts and, to keep its vocabulary, imitated spellings; 12 % of the letters that
   the language model reads back are replaced.

Augmentation, on features: tempo, vocal tract length, tilt, loudness, noise, time and frequency masks; recordings are
joined to longer rows, and single-word recordings to sequences.

```
mmspec train asr data --data speech
mmspec train asr sets --data speech --output sets
mmspec train asr reader --data speech --output runs/reader --minutes {reader_minutes:.0f}
mmspec train asr ctc --data speech --output runs/ctc --minutes {ctc_minutes:.0f}
torchrun --nproc-per-node 2 -m mmspec train asr joint --data speech --reader runs/reader --ctc runs/ctc \\
    --output runs/asr --minutes {joint_minutes:.0f}
mmspec train asr export --data speech --reader runs/reader --ctc runs/ctc --run runs/asr --sets sets --output tiny-asr \\
    --last
```

## Data and licences

| voice | kind | utterances | minutes | licence |
| --- | --- | --- | --- | --- |
{voices}

The folder is under CC-BY-SA-3.0 (the cautious reading of share-alike): see `NOTICE` and `LICENSE`. Credit: Allison
Smith and Digium.
"""

_LICENCES = {
    "en_US_f_Allison": ("human, English", "CC-BY-SA-3.0"),
    "es_MX_f_Allison": ("human, Spanish, the same person", "CC-BY-SA-3.0"),
    "fr_CA_f_June": ("human, French", "CC-BY-SA-3.0"),
    "it_IT_m_Carlo": ("human, Italian", "CC-BY-3.0"),
    "ru_RU_f_IvrvoiceRU": ("human, Russian", "CC-BY-3.0"),
    "piper-joe": ("synthetic (VITS)", "voice CC0"),
    "espeak-ng": ("synthetic, 16 variants", "output free"),
}
_KINDS = ("ctc", "plain", "exact", "accurate", "balanced", "fast", "pocketsphinx")
_FLITE = ("synthetic", "BSD-like")


def model_card(model: TinyAsrModel, training: dict[str, Any], assessment: str) -> str:
    """The card of a trained recogniser.

    Args:
        model: The networks.
        training: What was measured: ``stages``, ``corpus`` and ``sets``.
        assessment: Paragraph on what the recogniser gets right and wrong.
    """
    encoder, decoder = model.encoder.config.encoder_config, model.decoder.config
    minutes = {f"{name}_minutes": stage["minutes"] for name, stage in training["stages"].items()}
    return MODEL_CARD.format(
        layers=encoder.num_hidden_layers,
        width=encoder.hidden_size,
        labels=encoder.vocab_size,
        encoder=model.encoder.num_parameters(),
        projector=model.projector.num_parameters(),
        stack=model.projector.config.stack,
        decoder=model.decoder.num_parameters(),
        decoder_layers=decoder.num_hidden_layers,
        decoder_width=decoder.hidden_size,
        letters=decoder.vocab_size - 4,
        mels=model.feature_extractor.config.num_mels,
        rows="\n".join(_row(name, result) for name, result in training["sets"].items()),
        sequences=training["sets"]["sequence"]["recordings"],
        samples=12,
        stages="\n".join(f"| {n} | {s['steps']:,.0f} | {s['minutes']:.0f} |" for n, s in training["stages"].items()),
        voices="\n".join(_voice(name, entry) for name, entry in training["corpus"].items()),
        assessment=assessment.strip(),
        **minutes,
    )


def _row(name: str, result: dict[str, Any]) -> str:
    rates = " | ".join(f"{result[kind]['wer']:.3f}" for kind in _KINDS)
    return f"| {name} | {result['recordings']}, {result['words']} | {rates} |"


def _voice(name: str, entry: dict[str, float]) -> str:
    kind, licence = _LICENCES.get(name, _FLITE)
    return f"| {name} | {kind} | {entry['utterances']:.0f} | {entry['minutes']:.0f} | {licence} |"
