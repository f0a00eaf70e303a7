"""Take the screenshots of the documentation: every demo, driven in a headless Chromium on the embedded models.

Usage: python demos/screenshots.py [FOLDER [DEMO ...]]; needs ``mmspec[test]`` and Debian's chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

PATIENCE = 600_000  # milliseconds: models are loaded on the way
LARGEST = 300_000  # bytes of a picture


def main(folder: Path, kinds: Sequence[str]) -> None:
    """Write ``demo-KIND.png`` for each of ``kinds`` to ``folder``."""
    from playwright.sync_api import sync_playwright

    from demos.ui.launch import TABS, build, launch
    from demos.ui.shelf import Shelf

    shelf = Shelf()
    app = build(list(TABS), shelf)
    address = launch(app, block=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        for kind in kinds or TABS:
            page.get_by_role("tab", name=TABS[kind].title, exact=True).click()
            if shelf.missing(kind) is None:
                page.locator(f"#{kind}-run").click()
                page.locator(f'#{kind}-verdict .verdict[data-state="done"]').wait_for()
            else:
                page.locator(f"#{kind}-missing").wait_for()
            page.wait_for_timeout(1500)  # pictures are painted, hints have gone
            write(page.screenshot(full_page=True), folder / f"demo-{kind}.png")
        browser.close()
    app.close()


def write(content: Any, path: Path) -> None:
    """Write a PNG of as many colours as fit into :data:`LARGEST` bytes."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    for drawn in (picture, *(picture.quantize(colours) for colours in (256, 128, 64))):
        buffer = io.BytesIO()
        drawn.save(buffer, format="PNG", optimize=True)
        if buffer.tell() < LARGEST:
            break
    path.write_bytes(buffer.getvalue())
    print(path, drawn.size, drawn.mode, f"{buffer.tell()} bytes")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, where demos/ is a package
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"), sys.argv[2:])
