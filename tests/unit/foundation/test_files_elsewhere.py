"""Files are opened and written through ``foundation.files`` alone, which follows no link and waits for no pipe."""

import ast
from pathlib import Path

import data_prep
import megabert

ROOMS = [Path(module.__path__[0]) for module in (megabert, data_prep)]
METHODS = {"write_text", "write_bytes", "touch", "read_text", "read_bytes", "savefig", "memory_map", "OSFile"}
METHODS |= {"copyfile", "copy", "copy2", "copytree", "move", "memmap", "mkstemp", "NamedTemporaryFile", "fromfile"}
FUNCTIONS = {"save_file", "load_file", "safe_open", "SummaryWriter", "FileHandler"}
MODULES = {"np": {"load", "save", "savez"}, "os": {"open"}, "torch": {"load", "save"}, "shutil": METHODS}
NEW = {"temporary", "new", "content", "picture"}
"""Variables that hold a path which `atomic_path` or `publish_folder` has just invented, or a stream in memory."""

ALLOWED = {
    "megabert/foundation/files.py": "the one way",
    "megabert/settings/command_line/terminal.py": "/dev/null",
    "megabert/settings/command_line/failures.py": "/dev/null",
    "megabert/distributed/parent_death.py": "/proc, before anything is imported",
    "megabert/foundation/compiled.py": "the cache of compiled loops, in the user's own folder, each file with its hash",
    "megabert/foundation/compiled/": "the same",
    "megabert/checkpoints/loading.py": "safetensors, of files that were hashed before",
    "megabert/downstream/export/huggingface.py": "weights, of which `is_file` was asked; save_file in a new folder",
    "megabert/downstream/publish/forms.py": "save_file in the folder that an export has just made",
    "megabert/observability/metrics.py": "its folder may be no link, and its names hold the time",
    "megabert/downstream/inspection/attention_page/__init__.py": "parts of the page, from the package",
    "megabert/tooling/reports/curves.py": "the page, from the package",
    "data_prep/clean/": "arrays whose records were checked, with hash and size",
    "data_prep/extract/opening.py": "files of another host's, by fsspec",
    "megabert/foundation/remote_files.py": "the same",
    "megabert/tooling/doctor/machine.py": "the file that it has just written",
    "megabert/tokens/shards/": "an index or a shard, opened without waiting or checked before",
    "data_prep/commands/estimate.py": "in a temporary folder of Python's",
}


def opens(call: ast.Call) -> bool:
    """Whether a call opens a file by its path, other than as a new one."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    holder = getattr(getattr(call.func, "value", None), "id", "")
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Call) and first.args:  # str(path)
        first = first.args[0]
    words = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    if "xb" in words or "x" in words or getattr(first, "id", "") in NEW:
        return False
    if isinstance(call.func, ast.Name):
        return name == "open" or name in FUNCTIONS
    if holder in MODULES:
        return name in MODULES[holder]
    if name == "open":  # Path.open; other things are opened as well
        return any(isinstance(word, str) and set(word) <= set("rwab+") for word in words)
    return name in METHODS - {"copy"}


def calls_in(tree: ast.AST) -> list[ast.Call]:
    """Return all calls, but those of functions that have a path checked before a library opens it."""
    calls = [node for node in ast.iter_child_nodes(tree) if isinstance(node, ast.Call)]
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.FunctionDef) and "check_regular(" in ast.unparse(node)):
            calls += calls_in(node)
    return calls


def is_allowed(name: str) -> bool:
    return any(name == allowed or (allowed[-1] == "/" and name.startswith(allowed)) for allowed in ALLOWED)


def test_no_other_module_opens_files():
    found = {}
    for path in sorted(path for room in ROOMS for path in room.rglob("*.py")):
        name = str(path.relative_to(ROOMS[0].parent))
        calls = [call for call in calls_in(ast.parse(path.read_text())) if opens(call)]
        if calls and not is_allowed(name):
            found[name] = [f"line {call.lineno}: {ast.unparse(call)}" for call in calls]
    assert not found, found
