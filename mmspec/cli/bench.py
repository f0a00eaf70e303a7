"""``mmspec bench``: methods against plain decoding of the same loop, interleaved in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli import options
from mmspec.cli.ask import DEFAULT_VISION_LANGUAGE_MODEL
from mmspec.cli.batch import DEFAULT_BATCH_SIZE
from mmspec.cli.loading import (
    DEFAULT_IMAGE_MODEL,
    load_pipeline,
    load_reader,
    load_recogniser,
    load_video_pipeline,
    load_voice,
    prompts_of,
    samples_of,
)
from mmspec.cli.output import complain, progress, say, show, tell_files
from mmspec.cli.speak import DEFAULT_VOICE
from mmspec.cli.transcribe import DEFAULT_SPEECH_MODEL
from mmspec.cli.video import DEFAULT_VIDEO_MODEL

app = typer.Typer(help="Measure methods against plain decoding of the same loop.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure methods against plain decoding of the same loop."""


@app.command("image")
def image(
    model: options.Model = DEFAULT_IMAGE_MODEL,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run, may be repeated; an unknown name lists all.")
    ] = None,
    items: Annotated[int | None, typer.Option(help="Pictures per method; default 32, or 3 with --quick.")] = None,
    suite: Annotated[
        str,
        typer.Option(help="default, or methods: also relaxed rules, feature drafters, ZipAR, and costs at V = 16384."),
    ] = "default",
    quick: Annotated[bool, typer.Option("--quick", help="Three methods and few pictures, under a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios to this PNG file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for image.json and image.png.")] = None,
    batch_size: Annotated[int, typer.Option(help="Pictures decoded together.")] = 1,
    check_solo: Annotated[
        bool, typer.Option("--check-solo", help="Compare every row of a batch with the row decoded alone.")
    ] = False,
    memory: Annotated[
        bool | None,
        typer.Option("--memory/--no-memory", help="Measure peak memory; default: not with --suite methods."),
    ] = None,
    prompt: options.OwnPrompts = None,
    seed: options.FixedSeed = 0,
    temperature: Annotated[
        float | None, typer.Option(help="Default: what the checkpoint recommends, or 1 with --suite methods.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="As for --temperature; 0, which keeps all, with the suite.")
    ] = None,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Bench image methods: forwards, wall time, share of the physical limit, equality with plain decoding.

    Ratios are plain divided by method, in one run on this machine. The exit code is 1 if a method that promises plain
    decoding's tokens returned others.

    [bold]Example[/]: mmspec bench image --method default --method sjd --items 16 --json bench.json --plot bench.png
    """
    from mmspec.bench.image import ImageBench, run_image_bench
    from mmspec.bench.methods import choose_methods

    suite = "quick" if quick else suite
    if suite == "methods":  # couplings and relaxation are about chance: compare them where the law is the model's own
        temperature, top_k = 1.0 if temperature is None else temperature, 0 if top_k is None else top_k
    methods = choose_methods(method, suite)
    json_file, plot = _targets("image", json_file, plot, out)
    count = items if items is not None else 3 if quick else 32
    bench = ImageBench(
        model=model, methods=methods, prompts=prompts_of(model, prompt), items=count, batch_size=batch_size, seed=seed,
        temperature=temperature, top_k=top_k, check_solo=check_solo, overhead=suite == "methods",
        memory=suite != "methods" if memory is None else memory,
    )  # fmt: skip
    pipe = load_pipeline(model, device, dtype)
    with progress("items", len(bench.groups())) as on_item:
        report = run_image_bench(pipe, bench, on_item)
    show(report.table())
    say("* what the checkpoint recommends")
    _finish(report, json_file, plot)


@app.command("batch")
def batch(
    model: options.Model = DEFAULT_IMAGE_MODEL,
    items: Annotated[int | None, typer.Option(help="Pictures; default 32, or 4 with --quick.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Pictures of a micro-batch; default that of mmspec batch, or 2 with --quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few pictures, under a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios to this PNG file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for batch.json and batch.png.")] = None,
    prompt: options.OwnPrompts = None,
    seed: options.FixedSeed = 0,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Bench the throughput of mmspec batch against single calls in a loop, files written, tokens compared.

    Ratios are plain single calls divided by method, in one run on this machine. The exit code is 1 if the tokens of a
    method are not those of plain single calls.

    [bold]Example[/]: mmspec bench batch --items 32 --json batch.json
    """
    from mmspec.bench.batch import BatchBench, run_batch_bench

    json_file, plot = _targets("batch", json_file, plot, out)
    size = batch_size or (2 if quick else DEFAULT_BATCH_SIZE)
    bench = BatchBench(model, prompts_of(model, prompt), items or (4 if quick else 32), size, size, seed)
    pipe = load_pipeline(model, device, dtype)
    with progress("groups", len(bench.groups())) as on_item:
        report = run_batch_bench(pipe, bench, on_item)
    show(report.table())
    say(
        f"Micro-batches of {size} have {report.settings['throughput_ratio']:.2f} times the throughput of single calls."
    )
    _finish(report, json_file, plot)


@app.command("asr")
def asr(
    model: options.Model = DEFAULT_SPEECH_MODEL,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of recordings with transcripts.json; default: those that come with the model."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run, may be repeated; an unknown name lists all.")
    ] = None,
    items: Annotated[int | None, typer.Option(help="Recordings of each set; default all, or 4 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four methods and few recordings, under a minute.")] = False,
    pair: Annotated[
        bool, typer.Option("--pair/--no-pair", help="Also bench an encoder-decoder pair beside transformers.")
    ] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios to this PNG file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for asr.json and asr.png.")] = None,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Bench speech recognition: word errors, forwards of the language model, decisions, speed.

    Ratios are plain divided by method, in one run on this machine. The exit code is 1 if a method that promises plain
    decoding's text returned another.

    [bold]Example[/]: mmspec bench asr --method exact --method balanced --json asr.json
    """
    from mmspec.bench.asr import SpeechBench, read_items, run_speech_bench
    from mmspec.bench.speech_methods import choose_speech_methods

    methods = choose_speech_methods(method, quick)
    json_file, plot = _targets("asr", json_file, plot, out)
    recordings = read_items(data or samples_of(model), items if items is not None else 4 if quick else None)
    pipe = load_recogniser(model, device, dtype)
    bench = SpeechBench(model, methods, recordings)
    if pair:
        from mmspec.bench.whisper_pair import bench_pair, random_pair

        bench.extra = bench_pair(*random_pair(), [item.file for item in recordings[:8]])
    with progress("recordings", len(recordings)) as on_item:
        report = run_speech_bench(pipe, bench, on_item)
    show(report.table())
    say("* what the checkpoint recommends")
    _finish(report, json_file, plot)


@app.command("tts")
def tts(
    model: options.Model = DEFAULT_VOICE,
    text: Annotated[
        list[str] | None, typer.Option(help="Own sentence instead of the checkpoint's; may be repeated.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run, may be repeated; an unknown name lists all.")
    ] = None,
    items: Annotated[int | None, typer.Option(help="Sentences; default 20, or 3 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three methods and few sentences, under a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios to this PNG file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for tts.json and tts.png.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first sentence; the next have seed + 1, ...", min=0)] = 0,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Bench speech synthesis: calls of talker and code predictor, codes per call, wall time, time to first audio.

    Ratios are plain divided by method, in one run on this machine. The exit code is 1 if a method that promises plain
    decoding's sound returned another.

    [bold]Example[/]: mmspec bench tts --method default --method ratio --json tts.json
    """
    from mmspec.bench.tts import TtsBench, read_sentences, run_tts_bench
    from mmspec.bench.tts_methods import choose_tts_methods
    from mmspec.models.loading import local_folder
    from mmspec.pipelines.text_to_speech import TextToSpeechPipeline

    methods = choose_tts_methods(method, quick)
    json_file, plot = _targets("tts", json_file, plot, out)
    count = items if items is not None else 3 if quick else 20
    sentences = text or read_sentences(local_folder(model) or Path(model), count)
    pipe = load_voice(model, device, dtype)
    if not isinstance(pipe, TextToSpeechPipeline):
        raise ValueError(f"{model} is a {type(pipe).__name__}; the suite measures a TextToSpeechPipeline.")
    with progress("sentences", len(sentences)) as on_item:
        report = run_tts_bench(pipe, TtsBench(model, methods, sentences, seed), on_item)
    show(report.table())
    say("* what the checkpoint recommends")
    _finish(report, json_file, plot)


@app.command("video")
def video(
    model: options.Model = DEFAULT_VIDEO_MODEL,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run, may be repeated; an unknown name lists all.")
    ] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(help="Picture or clip to continue instead of the checkpoint's; may be repeated."),
    ] = None,
    items: Annotated[int | None, typer.Option(help="Clips per method; default 16, or 4 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four methods and few clips, under a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios to this PNG file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for video.json and video.png.")] = None,
    seed: options.FixedSeed = 0,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Bench video methods: forwards, wall time, share of the physical limit, equality with plain decoding.

    Ratios are plain divided by method, in one run on this machine. The exit code is 1 if a method that promises plain
    decoding's tokens returned others.

    [bold]Example[/]: mmspec bench video --method default --method sjd --json bench.json
    """
    from mmspec.bench.video import VideoBench, read_samples, run_video_bench
    from mmspec.bench.video_methods import choose_video_methods
    from mmspec.models.loading import local_folder

    methods = choose_video_methods(method, quick)
    json_file, plot = _targets("video", json_file, plot, out)
    samples = [(path, None) for path in source] if source else read_samples(local_folder(model) or Path(model))
    count = items if items is not None else 4 if quick else 16
    bench = VideoBench(model=model, methods=methods, samples=samples, items=count, seed=seed)
    pipe = load_video_pipeline(model, device, dtype)
    with progress("clips", count) as on_item:
        report = run_video_bench(pipe, bench, on_item)
    show(report.table())
    say("* what the checkpoint recommends")
    _finish(report, json_file, plot)


@app.command("vlm")
def vlm(
    model: options.Model = DEFAULT_VISION_LANGUAGE_MODEL,
    questions: Annotated[
        Path | None,
        typer.Option(
            help="Questions, one JSON object a line: prompt, images, answer, task. Default: the checkpoint's."
        ),
    ] = None,
    assistant: Annotated[
        str | None, typer.Option(help="Small model that drafts for 'assisted'. Default: the target's first layer.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run, may be repeated; an unknown name lists all.")
    ] = None,
    items: Annotated[int | None, typer.Option(help="Questions of each task; default all, or 2 with --quick.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="May be repeated; default 0 and 1.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four methods and few questions, under a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios to this PNG file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for vlm.json and vlm.png.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first question; the next have seed + 1, ...", min=0)] = 0,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
) -> None:
    """Bench questions about pictures: tokens per forward, wall time, share of the physical limit, right answers.

    Ratios are plain divided by method, in one run on this machine. The exit code is 1 if a method that promises plain
    decoding's text returned another.

    [bold]Example[/]: mmspec bench vlm --method default --method ngram --json vlm.json
    """
    from mmspec.bench.vlm import TEMPERATURES, VlmBench, first_of_each, run_vlm_bench
    from mmspec.bench.vlm_methods import choose_vlm_methods, drafters_there
    from mmspec.bench.vlm_peers import lower_layers
    from mmspec.models.loading import local_folder
    from mmspec.vlm.items import QUESTIONS, read_items

    asked = choose_vlm_methods(method, quick)
    json_file, plot = _targets("vlm", json_file, plot, out)
    chosen = first_of_each(
        read_items(questions or (local_folder(model) or Path(model)) / QUESTIONS), items or (2 if quick else None)
    )
    methods = asked if method else drafters_there(asked, model)
    pipe = load_reader(model, device, dtype)
    bench = VlmBench(
        model, methods, chosen, lower_layers(pipe.model) if assistant is None else load_reader(assistant, device).model,
        temperatures=tuple(temperature or TEMPERATURES), seed=seed,
        left_out=[one.name for one in asked if one not in methods],
    )  # fmt: skip
    with progress("questions", len(chosen) * len(bench.temperatures)) as on_item:
        report = run_vlm_bench(pipe, bench, on_item)
    show(report.table())
    say("* what the checkpoint recommends")
    _finish(report, json_file, plot)


def _targets(
    suite: str, json_file: Path | None, plot: Path | None, out: Path | None
) -> tuple[Path | None, Path | None]:
    """Files for figures and chart, in the folder ``out`` where nothing else is said."""
    if out is not None:
        json_file, plot = json_file or out / f"{suite}.json", plot or out / f"{suite}.png"
    if plot is not None and plot.suffix.lower() != ".png":
        raise ValueError(f"--plot writes PNG files, got {plot}.")
    return json_file, plot


def _finish(report: Any, json_file: Path | None, plot: Path | None) -> None:
    written = [report.write_json(json_file)] if json_file else []
    written += [report.write_plot(plot)] if plot else []
    tell_files(written)
    if report.unequal:
        complain(f"Not equal to plain decoding although promised: {', '.join(report.unequal)}.")
        raise typer.Exit(1)
