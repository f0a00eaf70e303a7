"""All demos in one page of tabs: python demos/app.py, with --help for the options."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, as for `python -m demos.app`
    from demos.ui.launch import TABS, main

    main(list(TABS))
