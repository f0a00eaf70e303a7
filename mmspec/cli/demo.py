"""``mmspec demo``: the embedded models of all modalities, plain and speculative, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mmspec.cli import options
from mmspec.cli.demo_rows import KINDS, Row, summary
from mmspec.cli.files import PictureWriter, slug
from mmspec.cli.loading import DEFAULT_IMAGE_MODEL, load_pipeline, prompts_of
from mmspec.cli.output import say, show, tell_files


@dataclass
class Pair:
    """One prompt decoded both ways with one seed; ``plain`` and ``speculative`` are pipeline outputs."""

    prompt: str
    seed: int
    plain: Any
    speculative: Any

    @property
    def equal(self) -> bool:
        return bool((self.plain.tokens == self.speculative.tokens).all())


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the pictures.")] = Path("mmspec-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Three prompts instead of six.")] = False,
    model: options.Model = DEFAULT_IMAGE_MODEL,
    prompt: options.OwnPrompts = None,
    seed: options.FixedSeed = 0,
    speech: Annotated[
        bool, typer.Option("--speech/--no-speech", help="Also transcribe recordings and speak sentences.")
    ] = True,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Show this part alone: image, asr, tts, vlm, video. May be repeated.", metavar="PART"),
    ] = None,
    device: options.Device = "auto",
) -> None:
    """Make pictures, transcripts, speech, answers and clips plainly and speculatively, and show that they are the same.

    Runs offline, in float32, in well under four minutes on two cores. The exit code is 1 if a pair differs.

    [bold]Example[/]: mmspec demo --out mmspec-demo
    """
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out {out} is a file; name a folder.")
    parts = _parts(only, speech)
    runs: dict[str, Callable[[], Row]] = {
        "image": lambda: _pictures(model, prompt, seed, quick, device, out),
        "asr": lambda: _transcripts(3 if quick else 6, device),
        "tts": lambda: _voice(1 if quick else 2, out, seed, device),
        "vlm": lambda: _answers(3 if quick else 6, device),
        "video": lambda: _clips(1 if quick else 2, out, seed, device),
    }
    rows = [runs[part]() for part in parts]
    show(summary(rows))
    if not all(row.equal for row in rows):
        raise typer.Exit(1)


def _parts(only: list[str] | None, speech: bool) -> list[str]:
    """The parts that were asked for, in order; ValueError for one that does not exist."""
    if unknown := [name for name in only or () if name not in KINDS]:
        raise ValueError(f"--only knows {', '.join(KINDS)}, got {unknown[0]!r}.")
    if only and not speech:
        raise ValueError("--only names the parts already; leave out --no-speech.")
    return [kind for kind in KINDS if (kind in only if only else speech or kind not in ("asr", "tts"))]


def _pictures(model: str, prompt: list[str] | None, seed: int, quick: bool, device: str, out: Path) -> Row:
    """Decode prompts both ways, show the pairs, and write their pictures to ``out``."""
    prompts = prompts_of(model, prompt)
    if not prompt:
        prompts = prompts[: 3 if quick else 6]
    pipe = load_pipeline(model, device)
    prepare(pipe)
    for speculate in (False, True):  # warm-up
        pipe(prompts[0], seed=seed, speculate=speculate, output_type="tokens")
    pairs = [decode_pair(pipe, text, seed + number, number % 2 == 1) for number, text in enumerate(prompts)]
    show(table_of(pairs))
    say(verdict(pairs), style="green" if all(pair.equal for pair in pairs) else "red")
    tell_files(write_pictures(pairs, out))
    return Row.of("image", pairs)


def _transcripts(count: int, device: str) -> Row:
    from mmspec.cli.demo_speech import hear_samples, show_transcripts

    heard = hear_samples(count, device)
    show_transcripts(heard)
    return Row.of("speech recognition", heard)


def _voice(count: int, out: Path, seed: int, device: str) -> Row:
    from mmspec.cli.demo_voice import speak_sentences

    return speak_sentences(count, out, seed, device)


def _answers(count: int, device: str) -> Row:
    from mmspec.cli.demo_reader import answer_questions

    return answer_questions(count, device)


def _clips(count: int, out: Path, seed: int, device: str) -> Row:
    from mmspec.cli.demo_video import continue_pictures

    return continue_pictures(count, out, seed, device)


def prepare(pipe: Any) -> None:
    """The checkpoint's drafter, or a Jacobi window, with the exact rule."""
    from mmspec.drafters.jacobi import JacobiDrafter

    pipe.drafter = pipe.drafter or JacobiDrafter()
    pipe.acceptance = None  # coupled match: the claim that the demo shows
    if getattr(pipe, "schedule", None) is not None:
        pipe.schedule = None
    pipe.set_progress_bar_config(disable=True)


def decode_pair(pipe: Any, prompt: str, seed: int, speculative_first: bool) -> Pair:
    """Decode one prompt both ways; which comes first alternates, so that neither meets the warmer machine."""
    outputs = {on: pipe(prompt, seed=seed, speculate=on) for on in (speculative_first, not speculative_first)}
    return Pair(prompt, seed, outputs[False], outputs[True])


def table_of(pairs: list[Pair]) -> Table:
    """The table that the demo prints."""
    table = Table(title="plain and speculative decoding with the same seeds")
    table.add_column("prompt")
    for column in ("seed", "plain forwards", "spec. forwards", "ratio", "plain s", "spec. s", "ratio", "equal"):
        table.add_column(column, justify="right")
    for pair in pairs:
        equal = "[green]yes[/]" if pair.equal else "[red]no[/]"
        table.add_row(Text(pair.prompt), str(pair.seed), *_figures([pair]), equal)
    if len(pairs) > 1:
        table.add_section()
        table.add_row("all", "", *_figures(pairs), "")
    return table


def _figures(pairs: list[Pair]) -> list[str]:
    forwards, seconds = (
        [sum(value(getattr(pair, way).stats) for pair in pairs) for way in ("plain", "speculative")]
        for value in (lambda stats: stats.forwards, lambda stats: stats.seconds["total"])
    )
    return [
        str(forwards[0]), str(forwards[1]), f"{forwards[0] / forwards[1]:.2f}",
        f"{seconds[0]:.2f}", f"{seconds[1]:.2f}", f"{seconds[0] / seconds[1]:.2f}",
    ]  # fmt: skip


def verdict(pairs: list[Pair]) -> str:
    """One line: how many pairs are equal, and what the method promises."""
    stats = pairs[0].speculative.stats
    same = sum(pair.equal for pair in pairs)
    return f"{same} of {len(pairs)} pairs are equal token for token; {stats.method} promises {stats.guarantee.value}."


def write_pictures(pairs: list[Pair], out: Path) -> list[Path]:
    """Write the sheet and the single pictures; runs of the demo replace one another's files."""
    from mmspec.bench.pictures import sheet

    writer = PictureWriter(out, overwrite=True)
    rows = {"plain": [p.plain.images[0] for p in pairs], "speculative": [p.speculative.images[0] for p in pairs]}
    captions = [f"{pair.prompt} #{pair.seed}" for pair in pairs]
    paths = [
        PictureWriter(out / "sheet.png", overwrite=True).write(sheet(rows, captions), "", {"model": "mmspec demo"})
    ]
    for pair in pairs:
        for way in ("plain", "speculative"):
            output = getattr(pair, way)
            facts = {"prompt": pair.prompt, "seed": str(pair.seed), "method": output.stats.method}
            paths.append(writer.write(output.images[0], f"{slug(pair.prompt)}-{way}", facts))
    return paths
