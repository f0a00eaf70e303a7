"""Text to image in a browser: python demos/image.py, with --help for the options."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, as for `python -m demos.image`
    from demos.ui.launch import main

    main(["image"])
