"""Write the tables of methods in README.md and docs from the committed bench results in this folder.

Usage: python demos/readme_table.py [--check]    (--check only tells whether the tables are up to date)
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- {} table: made by demos/readme_table.py -->\n", "<!-- end of {} table -->\n"


def exact_table(report: dict) -> str:
    """Methods that return plain decoding's tokens or law."""
    lines = [
        "| method | guarantee | tokens equal to plain | forwards, times fewer | wall clock, times faster | inside the model |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in report["methods"]:
        lines.append(
            f"| {name_of(method)} | {method['guarantee']} | {equal_of(method)} | {method['forwards_ratio']:.2f} "
            f"| {method['wall_ratio']:.2f} | {method['model_share']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def relaxed_table(report: dict) -> str:
    """All methods, with the deviation of the relaxed ones."""
    lines = [
        "| method | guarantee | equal | tokens/forward | forwards, times fewer | wall clock | step TV mean / max / bound "
        "| bits/token | colours | codes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in report["methods"]:
        deviation, quality = method["deviation"] or {}, method["quality"]
        steps = [deviation.get(f"step_tv_{kind}") for kind in ("mean", "max", "bound")]
        tv = " / ".join("-" if value is None else f"{value:.3f}" for value in steps) if deviation else ""
        if method["name"] == "plain":
            first = next(m for m in report["methods"] if "plain_code_distance" in m["quality"])["quality"]
            quality = {**quality, **{name: first[f"plain_{name}"] for name in ("colour_distance", "code_distance")}}
        bits = quality.get("bits_per_token", quality.get("untruncated_bits_per_token"))
        distances = (quality.get(name) for name in ("colour_distance", "code_distance"))
        far = " | ".join("" if value is None else f"{value:.3f}" for value in distances)
        lines.append(
            f"| {name_of(method)} | {method['guarantee']} | {equal_of(method)} | {method['tokens_per_forward']:.2f} "
            f"| {method['forwards_ratio']:.2f} | {method['wall_ratio']:.2f} | {tv} | {bits:.3f} | {far} |"
        )
    return "\n".join(lines) + "\n"


def overhead_table(report: dict) -> str:
    """Shares of the time outside the forwards at the size of GPT-B."""
    lines = [
        "| method | outside the forwards | forward, ms | draft, ms | accept, ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, parts in report["settings"]["overhead_gpt_b"].items():
        times = " | ".join(f"{parts[part]:.1f}" for part in ("forward_ms", "draft", "accept"))
        lines.append(f"| {name} | {parts['share']:.1%} | {times} |")
    return "\n".join(lines) + "\n"


def speech_table(report: dict) -> str:
    """Methods of speech recognition on the trained recogniser, with their errors."""
    lines = [
        "| method | guarantee | text of plain decoding | forwards a recording | forwards, times fewer | LLM part, times faster "
        "| RTFx | WER | human | sequence | synthetic |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in report["methods"]:
        quality = method["quality"]
        if "wer" not in quality:
            continue  # the encoder-decoder pair, which has random weights
        rates = " | ".join(f"{quality[name]:.3f}" for name in ("wer", "wer_human", "wer_sequence", "wer_synthetic"))
        equal = equal_of(method) or f"{1 - (method['deviation'] or {}).get('texts_changed', 0):.0%}"
        lines.append(
            f"| {name_of(method)} | {method['guarantee']} | {equal} | {quality['forwards_per_utterance']:.1f} "
            f"| {method['forwards_ratio']:.2f} | {method['wall_ratio']:.2f} | {quality['rtfx']:.1f} | {rates} |"
        )
    return "\n".join(lines) + "\n"


def pair_table(report: dict) -> str:
    """The encoder-decoder pair of random weights beside transformers."""
    lines = [
        "| method | tokens equal to plain | forwards of the large decoder, times fewer | wall clock, times faster |",
        "| --- | --- | --- | --- |",
    ]
    for method in report["methods"]:
        if method["name"].startswith("whisper"):
            equal = "yes" if method["quality"]["equal_to_plain"] else "NO"
            ratios = f"{method['forwards_ratio']:.2f} | {method['wall_ratio']:.2f}"
            lines.append(f"| {name_of(method)} | {equal} | {ratios} |")
    return "\n".join(lines) + "\n"


def video_table(report: dict) -> str:
    """Methods of video, with what is left of the time that the forwards alone would take."""
    starts = report["settings"]["forwards_ratio_to_uniform_w32"]
    lines = [
        "| method | guarantee | tokens equal to plain | forwards, times fewer | than with a uniform start | wall clock, times "
        "faster | of the limit | bits/token |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in report["methods"]:
        start = starts.get(method["name"].removeprefix("start-")) if method["name"].startswith("start-") else None
        lines.append(
            f"| {name_of(method)} | {method['guarantee']} | {equal_of(method)} | {method['forwards_ratio']:.2f} "
            f"| {'' if start is None else f'{start:.2f}'} | {method['wall_ratio']:.2f} | {method['limit_fraction']:.2f} "
            f"| {method['quality']['bits_per_token']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def voice_table(report: dict) -> str:
    """Methods of text to speech on the embedded voice."""
    lines = [
        "| method | guarantee | PCM of plain decoding | residual codes a predictor call | calls a second of sound, times fewer "
        "| wall clock of the token loop, times faster | of the limit | first sound, s (plain) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in report["methods"]:
        quality = method["quality"]
        first = f"{quality['first_audio_seconds']:.2f} ({quality['plain_first_audio_seconds']:.2f})"
        lines.append(
            f"| {name_of(method)} | {method['guarantee']} | {equal_of(method)} | {method['tokens_per_forward']:.2f} "
            f"| {method['forwards_ratio']:.2f} | {method['wall_ratio']:.2f} | {method['limit_fraction']:.2f} | {first} |"
        )
    return "\n".join(lines) + "\n"


def batch_table(report: dict) -> str:
    """Throughput of micro-batches beside single calls."""
    lines = [
        "| pictures | tokens equal to single plain calls | sequential forwards | pictures a second | times plain single calls |",
        "| --- | --- | --- | --- | --- |",
    ]
    titles = {
        "plain": "one by one, plain", "loop": "one by one", "batch-plain": "`mmspec batch --plain`", "batch": "`mmspec batch`",
    }  # fmt: skip
    for method in report["methods"]:
        lines.append(
            f"| {titles[method['name']]} | {equal_of(method)} | {method['forwards']} "
            f"| {method['quality']['items_per_second']:.2f} | {method['wall_ratio']:.2f} |"
        )
    settings = report["settings"]
    told = (
        f"\nMicro-batches of {settings['batch_size']} have **{settings['throughput_ratio']:.2f} times** the throughput of single calls "
        f"with the same method ({settings['items']} pictures, {settings['threads']} thread, {settings['cpu']}, {settings['date']}).\n"
    )
    return "\n".join(lines) + "\n" + told


def cost_table(report: dict) -> str:
    """What a forward of the target costs by its width, in the run of a bench."""
    times = {int(width): ms for width, ms in report["settings"]["forward_ms"].items() if width.isdigit()}
    widths = [width for width in sorted(times) if width.bit_count() == 1]
    rows = (
        ["nodes", *(str(width) for width in widths)],
        ["---"] * (len(widths) + 1),
        ["ms a forward", *(f"{times[width]:.1f}" for width in widths)],
        ["of one node's", *(f"{times[width] / times[1]:.2f}" for width in widths)],
    )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def vlm_table(report: dict) -> str:
    """Methods of questions about pictures, greedy and at temperature 1 (``-t1``), with right answers by task."""
    tasks = sorted(
        {key.removesuffix("_accuracy") for m in report["methods"] for key in m["quality"] if "_accuracy" in key}
    )
    lines = [
        "| method | guarantee | tokens equal to plain | tokens a forward | forwards, times fewer | wall clock, times faster | of the "
        f"limit |{''.join(f' {task}, right |' for task in tasks)}",
        f"| --- | --- | --- | --- | --- | --- | --- |{' --- |' * len(tasks)}",
    ]
    for method in report["methods"]:
        right = (method["quality"].get(f"{task}_accuracy") for task in tasks)
        lines.append(
            f"| {name_of(method)} | {method['guarantee']} | {equal_of(method)} | {method['tokens_per_forward']:.2f} "
            f"| {method['forwards_ratio']:.2f} | {method['wall_ratio']:.2f} | {method['limit_fraction']:.2f} "
            f"|{''.join(' |' if share is None else f' {share:.0%} |' for share in right)}"
        )
    return "\n".join(lines) + "\n"


def name_of(method: dict) -> str:
    name = f"**{method['name']}**" if method["default"] else method["name"]
    return f"{name} (peer)" if method["peer"] else name


def equal_of(method: dict) -> str:
    if method["tokens_equal"] is None:
        return "same law" if method["guarantee"] == "SAME_LAW" else ""
    return "yes" if method["tokens_equal"] else "NO"


def replaced(page: str, kind: str, table: str) -> str:
    """``page`` with another table of this ``kind`` between its marks."""
    begin, end = BEGIN.format(kind), END.format(kind)
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + table + end + after


#: page, name of the table on it, its maker, and the committed result
TABLES = (
    ("README.md", "bench", exact_table, "image"),
    ("docs/methods.md", "bench", relaxed_table, "methods"),
    ("docs/methods.md", "flat", relaxed_table, "methods-flat"),
    ("docs/methods.md", "overhead", overhead_table, "methods"),
    ("docs/speech-recognition.md", "asr", speech_table, "asr"),
    ("docs/speech-recognition.md", "pair", pair_table, "asr"),
    ("docs/video.md", "bench", video_table, "video"),
    ("docs/text-to-speech.md", "tts", voice_table, "tts"),
    ("docs/batch.md", "batch", batch_table, "batch"),
    ("docs/performance.md", "image cost", cost_table, "image"),
    ("docs/performance.md", "video cost", cost_table, "video"),
    ("docs/vision-language.md", "vlm", vlm_table, "vlm"),
)


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    new: dict[Path, str] = {}
    for page, kind, make, result in TABLES:
        path, source = ROOT / page, ROOT / f"demos/bench-{result}.json"
        if not source.is_file():
            continue  # measured once its checkpoint is there
        new[path] = replaced(new.get(path) or path.read_text(), kind, make(json.loads(source.read_text())))
    return new


def main() -> int:
    new = pages()
    if "--check" in sys.argv:
        return int(any(text != path.read_text() for path, text in new.items()))
    for path, text in new.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
