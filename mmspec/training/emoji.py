"""Emoji as a text-to-image data set: three freely licensed drawing styles of the same things, with captions.

The drawings are the npm packages ``@iconify-json/noto`` (Google, Apache-2.0), ``@iconify-json/twemoji`` (Twitter and
contributors, CC-BY-4.0) and ``@iconify-json/fluent-emoji-flat`` (Microsoft, MIT), rasterised on white.
"""

from __future__ import annotations

import io
import json
import logging
import random
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from mmspec.training.names import CLASSES, SHORT_FORMS

logger = logging.getLogger(__name__)

STYLES = {"noto": "noto", "twemoji": "twemoji", "fluent": "fluent-emoji-flat"}
"""Style word of a caption -> npm package under ``@iconify-json``."""

EXCLUDED_CATEGORIES = ("People & Body", "Flags", "Symbols")
_SKIN_TONE = re.compile(r"skin-tone|-tone[1-5]")


@dataclass(frozen=True)
class EmojiConfig:
    """Where the drawings are and how they are rasterised.

    Args:
        data: Folder with the three npm archives (``iconify-json-<package>-<version>.tgz``); missing ones are fetched
            there with ``npm pack`` if npm is installed. The rasterised cache is written to it too.
        size: Side of the square images in pixels.
        classes: Class names of :data:`CLASSES` to keep, in the order of their class ids.

    Raises:
        ValueError: If ``size`` is not a positive multiple of 4 or a class is unknown.
    """

    data: Path
    size: int = 48
    classes: tuple[str, ...] = field(default=tuple(CLASSES))

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))
        if self.size <= 0 or self.size % 4:
            raise ValueError(f"`size` is {self.size}; it must be a positive multiple of 4.")
        unknown = sorted(set(self.classes) - set(CLASSES))
        if unknown or not self.classes:
            raise ValueError(f"`classes` holds {unknown or 'nothing'}; choose from {sorted(CLASSES)}.")


@dataclass(frozen=True)
class EmojiSet:
    """Rasterised drawings: ``images`` (n, S, S, 3) uint8 with the ``names`` and ``styles`` (n,) of each."""

    images: np.ndarray
    names: np.ndarray
    styles: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def select(self, keep: np.ndarray) -> EmojiSet:
        """The drawings at ``keep``, a boolean mask or indices (n,)."""
        return EmojiSet(self.images[keep], self.names[keep], self.styles[keep])


def find_archive(data: Path, package: str) -> Path:
    """Path of the npm archive of ``@iconify-json/<package>`` in ``data``, fetched with npm if it is not there.

    Raises:
        FileNotFoundError: If there is none and npm cannot fetch it.
    """
    pattern = re.compile(rf"iconify-json-{package}-[0-9.]+\.tgz")
    found = sorted(path for path in data.glob("*.tgz") if pattern.fullmatch(path.name))
    if not found and (npm := shutil.which("npm")):
        logger.info("fetching @iconify-json/%s with npm", package)
        data.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([npm, "pack", f"@iconify-json/{package}"], cwd=data, capture_output=True, text=True)
        if done.returncode:
            logger.warning("npm pack @iconify-json/%s failed: %s", package, done.stderr.strip()[-300:])
        found = sorted(path for path in data.glob("*.tgz") if pattern.fullmatch(path.name))
    if not found:
        packages = ", ".join(f"@iconify-json/{name}" for name in STYLES.values())
        raise FileNotFoundError(
            f"No archive of @iconify-json/{package} in {data}. Install npm, or run `npm pack` for each of {packages} "
            "elsewhere and copy the .tgz files there."
        )
    return found[-1]


def read_archive(path: Path) -> dict[str, str]:
    """SVG documents of an icon archive by icon name, without skin tones, people, flags and symbols."""
    with tarfile.open(path) as archive:
        icons, metadata = (
            json.load(archive.extractfile(f"package/{name}.json"))  # type: ignore[arg-type]
            for name in ("icons", "metadata")
        )
    excluded = {name for category in EXCLUDED_CATEGORIES for name in metadata["categories"].get(category, ())}
    return {
        name: _svg(icon, icons)
        for name, icon in sorted(icons["icons"].items())
        if name not in excluded and not _SKIN_TONE.search(name)
    }


def _svg(icon: dict[str, Any], defaults: dict[str, Any]) -> str:
    left, top, width, height = (icon.get(key, defaults.get(key, default)) for key, default in _BOX.items())
    side = max(width, height)  # a few drawings are oblong: centre them in a square
    box = (left - (side - width) / 2, top - (side - height) / 2, side, side)
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {namespaces} viewBox="{" ".join(map(str, box))}">{icon["body"]}</svg>'


_BOX = {"left": 0, "top": 0, "width": 16, "height": 16}  # the icon format's own defaults


def rasterise(svg: str, size: int) -> np.ndarray:
    """Draw an SVG document on white, (size, size, 3) uint8.

    Raises:
        ImportError: If resvg-py is missing.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise ImportError("Rasterising emoji needs resvg-py: pip install 'mmspec[train]'.") from error
    png = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=size, height=size, background="#ffffff"))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def load_emoji(config: EmojiConfig) -> EmojiSet:
    """Every kept drawing of the three styles, sorted by style and name; cached in ``config.data``."""
    cache = config.data / f"emoji-{config.size}.npz"
    if not cache.exists():
        images, names, styles = [], [], []
        for style, package in STYLES.items():
            drawings = read_archive(find_archive(config.data, package))
            for name, svg in tqdm(drawings.items(), desc=f"rasterise {style}"):
                images.append(rasterise(svg, config.size))
                names.append(name)
                styles.append(style)
        partial = cache.with_suffix(".tmp.npz")
        np.savez_compressed(partial, images=np.stack(images), names=np.array(names), styles=np.array(styles))
        partial.replace(cache)
    with np.load(cache, allow_pickle=False) as arrays:
        return EmojiSet(arrays["images"], arrays["names"], arrays["styles"])


def class_of_names(classes: tuple[str, ...] = tuple(CLASSES)) -> dict[str, int]:
    """Emoji name -> class id, for the listed emoji of ``classes``."""
    return {name: index for index, label in enumerate(classes) for name in CLASSES[label].split()}


def listed_emoji(emoji: EmojiSet, classes: tuple[str, ...] = tuple(CLASSES)) -> tuple[EmojiSet, np.ndarray]:
    """The drawings whose names :data:`CLASSES` lists, and their class ids (n,)."""
    labels = class_of_names(classes)
    chosen = emoji.select(np.array([name in labels for name in emoji.names], dtype=bool))
    return chosen, np.array([labels[name] for name in chosen.names], dtype=np.int64)


def plain_names(name: str) -> tuple[str, ...]:
    """Words for an emoji: its own name with spaces, then its everyday short forms."""
    return (name.replace("-", " "), *SHORT_FORMS.get(name, ()))


NAME_AND_STYLE = (
    "{name}, {style} style",
    "{name}, {style} style",  # the documented form, twice as likely as each other one
    "{name} in {style} style",
    "{style} {name}",
    "a {name}, {style} style",
)
NAME_ONLY = ("{name}", "{name}", "a {name}", "the {name}")
NAME_CLASS_STYLE = (
    "{name}, {label}, {style} style",
    "{label}, {name}, {style} style",
    "{style} style {label}, {name}",
)
STYLE_AND_CLASS = ("{label}, {style} style", "{style} {label}")


def caption(kind: tuple[str, ...], name: str, label: str, style: str, rng: random.Random) -> str:
    """A caption of one ``kind``, such as :data:`NAME_AND_STYLE`, for the emoji ``name`` of class ``label``."""
    return rng.choice(kind).format(name=rng.choice(plain_names(name)), label=label, style=style)
