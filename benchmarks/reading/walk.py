"""Lists the files and functions of this code that run within one function: what a reader of that walk opens.

    python benchmarks/reading/walk.py OUT data_prep.pipeline:build_shards data_prep build --input ... --workers 1
    torchrun --nproc_per_node 2 benchmarks/reading/walk.py OUT megabert.training.trainer:Trainer.fit megabert pretrain

OUT.RANK gets a line a function. Threads are traced, other processes are not. Of compiled loops the trace sees little;
NUMBA_DISABLE_JIT=1 shows all that they call (a build runs with that, the loader does not).
"""

import functools
import importlib
import json
import os
import runpy
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path.cwd()
ROOMS = (f"{ROOT}/megabert/", f"{ROOT}/data_prep/")


def main() -> None:
    """Run a program and write what ran within the function."""
    out, target, program, *arguments = sys.argv[1:]
    sys.path.insert(0, str(ROOT))
    seen: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOMS) and code.co_name != "<module>":
            seen.add((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

    module, path = target.split(":")
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    @functools.wraps(function)
    def traced(*args: Any, **options: Any) -> Any:
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return function(*args, **options)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            lines = (f"{file}\t{name}\n" for file, name in sorted(seen))
            Path(f"{out}.{os.environ.get('RANK', '0')}").write_text("".join(lines))

    setattr(owner, name, traced)
    # Loops that are not compiled return numpy's integers, which compiled ones do not.
    json.JSONEncoder.default = lambda _, value: value.item() if isinstance(value, np.generic) else str(value)  # type: ignore[method-assign]
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__")


if __name__ == "__main__":
    main()
