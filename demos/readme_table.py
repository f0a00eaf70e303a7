"""Write the README's table of methods from the committed bench result demos/bench-image.json.

Usage: python demos/readme_table.py [--check]    (--check only tells whether the README is up to date)
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- bench table: made by demos/readme_table.py -->\n", "<!-- end of bench table -->\n"


def table(report: dict) -> str:
    lines = [
        "| method | guarantee | tokens equal to plain | forwards, times fewer | wall clock, times faster | inside the model |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in report["methods"]:
        equal = {True: "yes", False: "NO", None: "same law"}[method["tokens_equal"]]
        name = f"**{method['name']}**" if method["default"] else method["name"]
        lines.append(
            f"| {name} | {method['guarantee']} | {equal} | {method['forwards_ratio']:.2f} | {method['wall_ratio']:.2f} "
            f"| {method['model_share']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def updated(readme: str, report: dict) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(report) + END + after


def main() -> int:
    readme = ROOT / "README.md"
    new = updated(readme.read_text(), json.loads((ROOT / "demos/bench-image.json").read_text()))
    if "--check" in sys.argv:
        return int(new != readme.read_text())
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
