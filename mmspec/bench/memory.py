"""Peak memory on a CPU: each method decodes one item in a process of its own, whose peak the system reports.

One fresh process loads the model, with one thread and without computing anything, and forks a child for every method;
so all children start from the same pages, and the differences of their peaks are the methods'. The peak includes the
interpreter, the libraries and the weights, as any user would see it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmspec

if TYPE_CHECKING:
    from mmspec.bench.image import ImageBench


def peak_memory(bench: ImageBench, dtype: str) -> dict[str, int]:
    """Peak resident bytes of every method of ``bench``, or nothing where processes cannot be forked.

    Raises:
        RuntimeError: If the measuring process fails, with its last words.
    """
    if not hasattr(os, "fork"):
        return {}
    names = [method.name for method in bench.methods]
    order = {**asdict(bench), "methods": names, "dtype": dtype}
    roots = [str(Path(mmspec.__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}
    command = [sys.executable, "-m", "mmspec.bench.memory"]
    result = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, check=False, env=environment
    )
    if result.returncode:
        words = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"The process that measures memory failed: {words}")
    return json.loads(result.stdout.splitlines()[-1])


def measure(order: dict[str, Any]) -> dict[str, int]:
    """Load the model and measure every method in a forked child."""
    import torch

    torch.set_num_threads(1)  # a forked child cannot use its parent's thread pool
    from mmspec.bench.image import ImageBench, decode
    from mmspec.bench.methods import build_methods, choose_methods
    from mmspec.pipelines.base import SpecPipeline
    from mmspec.runner.device import pick_dtype

    dtype = pick_dtype(order.pop("dtype"))
    bench = ImageBench(**{**order, "methods": choose_methods(order["methods"])})
    pipe = SpecPipeline.from_pretrained(bench.model, dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    [item] = bench.groups()
    methods = build_methods(bench.methods, pipe)
    return {name: _in_child(lambda built=built: decode(pipe, built, item)) for name, built in methods.items()}


def _in_child(run: Any) -> int:
    """Peak resident bytes of a forked child that calls ``run``."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise RuntimeError(f"a method failed with status {status}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))  # noqa: T201 - this is the answer to the parent
