"""Questions about pictures in a browser: python demos/vlm.py, with --help for the options."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, as for `python -m demos.vlm`
    from demos.ui.launch import main

    main(["vlm"])
