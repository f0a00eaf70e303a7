"""``mmspec models``: which checkpoints there are and what each needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from mmspec.cli.output import say, show

MIB = 1 << 20
GIB = 1 << 30
T5_XL_ENCODER_PARAMETERS = 1.22e9


def models() -> None:
    """List the embedded checkpoints, the families of image models, and the LlamaGen files that mmspec converts.

    [bold]Example[/]: mmspec models
    """
    show(embedded_table())
    show(families_table())
    show(released_table())
    say("Guarantees hold in float32 with the checkpoint's own rule: SAME_TOKENS is token for token plain decoding.")
    say("Hub ids and folders of these families load by their configuration: mmspec image PROMPT --model NAME")
    say("LlamaGen files run after: mmspec convert llamagen TRANSFORMER VQ OUTPUT --image-size PIXELS")


def embedded_table() -> Table:
    """The checkpoints that come with the package."""
    from mmspec.models.loading import EMBEDDED, embedded_checkpoints

    table = Table(title="embedded checkpoints", title_justify="left")
    for column in ("name", "pipeline", "drafter", "acceptance", "guarantee", "on disk", "needs"):
        table.add_column(column)
    for name in embedded_checkpoints():
        table.add_row(name, *describe_folder(EMBEDDED / name.removeprefix("mmspec/")))
    if not table.rows:
        table.add_row("(none in this installation)", *[""] * 6)
    return table


def describe_folder(folder: Path) -> list[str]:
    """Pipeline, drafter, rule, guarantee, size and needs of a saved pipeline."""
    import mmspec
    from mmspec.models.loading import read_json

    index = read_json(folder / "model_index.json")
    drafter, rule = (_class_name(index.get(kind)) for kind in ("drafter", "acceptance"))
    rule_class = getattr(mmspec, rule or "CoupledAcceptance", None)
    guarantee = rule_class.guarantee.value if rule_class else "unknown"
    if schedule := _class_name(index.get("schedule")):  # replaces drafter and rule
        drafter, rule, guarantee = schedule, "none", getattr(mmspec, schedule).worth.value
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needs = "nothing: runs offline on a CPU"
    return [
        str(index.get("_class_name")), drafter or "none (plain)", rule or "coupled (default)", guarantee,
        f"{size / MIB:.1f} MiB", needs,
    ]  # fmt: skip


def _class_name(entry: Any) -> str | None:
    return entry[1] if isinstance(entry, list) and len(entry) == 2 else None


def families_table() -> Table:
    """The families of image models: checkpoints, sizes, recommended settings and needs."""
    from mmspec.image.families import IMAGE_FAMILIES

    table = Table(title="families of image models (docs/families)", title_justify="left")
    for column in ("family", "checkpoints", "pixels", "guidance", "top-k", "licence", "needs"):
        table.add_column(column)
    for family in IMAGE_FAMILIES:
        weights = f"from {family.parameters * 2 / GIB:.1f} / {family.parameters * 4 / GIB:.1f} GiB (16 / 32 bit)"
        needs = f"{family.needs}; {weights}" if family.needs else weights
        table.add_row(
            family.name, "\n".join(family.hub_ids), family.sizes, f"{family.guidance_scale:g}",
            str(family.top_k or "off"), family.licence, needs,
        )  # fmt: skip
    return table


def released_table() -> Table:
    """The released LlamaGen files, with what the weights take in 16 and 32 bits."""
    from mmspec.image.llamagen_configs import RELEASED, SIZES

    table = Table(title="released LlamaGen files (Sun et al., 2024)", title_justify="left")
    for column in ("file", "size", "pixels", "condition", "guidance", "top-k", "guarantee", "needs"):
        table.add_column(column)
    for checkpoint in RELEASED.values():
        parameters = SIZES[checkpoint.size].parameters
        needs = [checkpoint.vq_file]
        if checkpoint.condition == "caption":
            needs.append("flan-t5-xl")
            parameters += T5_XL_ENCODER_PARAMETERS
        weights = f"{parameters * 2 / GIB:.1f} / {parameters * 4 / GIB:.1f} GiB of weights (16 / 32 bit)"
        table.add_row(
            checkpoint.file, checkpoint.size, str(checkpoint.image_size), checkpoint.condition,
            f"{checkpoint.guidance_scale:g}", str(checkpoint.top_k), "SAME_TOKENS", f"{', '.join(needs)}; {weights}",
        )  # fmt: skip
    return table
