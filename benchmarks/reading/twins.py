"""Refuses a second public class or function of a name, so that a search for a name leads to one definition.

    python benchmarks/reading/twins.py          exit 1 if a name is defined twice and is not in TWINS
    python benchmarks/reading/twins.py --all    print every name that is defined twice

Only definitions at the top level of ``megabert`` and ``data_prep`` count; private names and methods do not.
"""

import ast
import sys
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

PACKAGES = ("megabert", "data_prep")
PUBLIC = "a public function of Python, and what it calls"
LAMB = "the op, its reference and its kernel take the same arguments; the tests compare them"
NUMPY_AND_LOOPS = "one draw for numpy arrays and one for compiled loops, which give the same numbers"
TWINS: dict[str, tuple[str, ...]] = {
    "add_arguments": ("every command describes itself by one", "*/commands/*.py"),
    "run": ("every command is run by one", "*/commands/*.py"),
    "main": ("the entry point of each program", "*/cli.py"),
    "estimate": (
        "the needs of a run and those of a build",
        "megabert/tooling/planning/*",
        "data_prep/planning/estimate.py",
    ),
    "evaluate": (PUBLIC, "megabert/library/runs.py", "megabert/downstream/finetuning/trainer.py"),
    "pretrain": (PUBLIC, "megabert/library/runs.py", "megabert/training/pretrain.py"),
    "resume": (PUBLIC, "megabert/library/runs.py", "megabert/training/run/start.py"),
    "apply_update": (LAMB, "megabert/ops/lamb/*"),
    "compute_update": (LAMB, "megabert/ops/lamb/*"),
    "below": (NUMPY_AND_LOOPS, "megabert/foundation/randomness/*"),
    "stream": (NUMPY_AND_LOOPS, "megabert/foundation/randomness/*"),
    "uniform": (NUMPY_AND_LOOPS, "megabert/foundation/randomness/*"),
    "lowbias32": (
        "the hash in Python and in Triton, which compiles its own source",
        "megabert/foundation/randomness/lowbias32.py",
        "megabert/ops/triton_support/device_functions.py",
    ),
    "encode": ("the loop of each tokenizer, called alike", "megabert/tokens/tokenization/*_loops.py"),
}
"""Names that may be defined more than once: the reason, then patterns of the files that may define them."""


def main() -> int:
    """Print the names that are defined twice without leave; return 1 if there are any."""
    shows_all = sys.argv[1:] == ["--all"]
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for package in PACKAGES for path in Path(package).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))

    refused = 0
    for name, files in sorted(places.items()):
        if len(files) == 1:
            continue
        reason, *patterns = TWINS.get(name, ("not in the table of benchmarks/reading/twins.py",))
        strangers = [file for file in files if not any(fnmatch(file, pattern) for pattern in patterns)]
        refused += bool(strangers)
        if strangers or shows_all:
            print(f"{name}: {reason}: {', '.join(files)}")

    # A row that nothing needs any more would let the next twin in.
    for name in sorted(name for name in TWINS if len(places[name]) < 2):
        refused += 1
        print(f"{name}: is defined once; take it out of the table of benchmarks/reading/twins.py")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
