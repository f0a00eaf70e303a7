"""Print the README's ``bash`` blocks, one a NUL-terminated record, for .ci/run to execute."""

import re
import sys
from pathlib import Path

text = (Path(__file__).resolve().parent.parent / "README.md").read_text()
for block in re.findall(r"^```bash\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
    sys.stdout.write(block + "\0")
