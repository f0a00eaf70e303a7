"""Pictures as files that say how they were made."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from PIL.PngImagePlugin import PngInfo


def png_bytes(picture: Any, facts: Mapping[str, Any]) -> bytes:
    """A PNG of ``picture`` with one text chunk per fact; values that are no strings are JSON."""
    info = PngInfo()
    for key, value in facts.items():
        info.add_itxt(key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()
