"""Names, variables and words of the shell that nobody foresaw."""

import socket

from bad_input.given import copy, make, set_json, write
from bad_input.harness import Case
from bad_input.material import run_flags

PRETRAIN = f"megabert pretrain {run_flags()}"
ODD_NAMES = {
    "*SCRIPT*": "stars",
    "[a-z]": "brackets",
    "{model}": "braces",
    "%s %(message)s": "percent signs",
    "$HOME": "a dollar",
    "a\nb": "a line break",
    "\x1b[2J": "an escape sequence",
    "-x": "a minus first",
    "~": "a tilde",
    "a'b\"c": "quotes",
    "\u202egnp.exe": "a change of direction",
    "<script>x<b>": "HTML",
    "\\": "a backslash",
    "a;b|c&d": "words of the shell",
    "d\u00e9\u4e2d\U0001f600": "other scripts",
}
SPELLED = {
    "PYTHONOPTIMIZE": ("1", "2"),
    "COLUMNS": ("0", "1", "2", "-5", "x", "99999999999"),
    "LINES": ("0", "x"),
    "PYTHONIOENCODING": ("ascii", "utf-16", "latin-1:strict"),
    "LC_ALL": ("C", "nonsense"),
    "LANG": ("", "nonsense"),
    "TERM": ("", "dumb", "nonsense"),
    "HOME": ("", "/nonexistent"),
    "TMPDIR": ("/nonexistent", ""),
    "PYTHONWARNINGS": ("error", "nonsense"),
    "PYTHONHASHSEED": ("0",),
    "OMP_NUM_THREADS": ("0", "x", "1000000"),
    "NO_COLOR": ("1",),
    "TQDM_DISABLE": ("1",),
    "PYTHONUTF8": ("0",),
    "PYTHONFAULTHANDLER": ("1",),
    "NUMBA_CACHE_DIR": ("/nonexistent/x", ""),
    "XDG_CACHE_HOME": ("/proc/nonexistent", ""),
    "MPLBACKEND": ("nonsense",),
    "NUMBA_NUM_THREADS": ("abc", "", "0", "1.5"),
    "MPLCONFIGDIR": ("/proc/nonexistent",),
}
HELP = ("megabert --help", "megabert pretrain --help-all", "megabert-data build --help")
COMMANDS = (*HELP, "megabert similar --model hf ship")
LIVE = {"status": "running", "host": socket.gethostname(), "pid": 10**30}
NOT_UTF8 = "\udcff\udcfe"

CASES = [
    *(
        Case(
            name=f"{verb}: a folder with {about} in its name",
            given=(copy(*needs), make(lambda folder, given=given, name=name: (folder / given).rename(folder / name))),
            command=command.format(_quoted),
            code=code,
            leaves=("v.npy", "page.html"),
        )
        for name, about in ODD_NAMES.items()
        for _quoted in ["'./" + name.replace("'", "'\"'\"'") + "'"]
        for verb, given, needs, command, code in (
            ("fill-mask", "hf", ("hf",), "megabert fill-mask --model {} 'the [MASK] ship'", 0),
            ("attention", "hf", ("hf",), "megabert attention 'the ship' --model {} --output page.html", 0),
            ("embed", "hf", ("hf", "lines.txt"), "megabert embed lines.txt --model {} --output v.npy", 0),
            ("watch", "run", ("run",), "megabert watch {} --once", 0),
            ("stats", "build", ("build",), "megabert-data stats {}", 0),
            ("verify", "build", ("build",), "megabert-data verify {}/instances/32 --workers 1", 0),
        )
    ),
    *(
        Case(
            name=f"{command.split()[1]}: {variable}={value!r}",
            given=(copy("hf"),),
            command=command,
            code=(0, 2, 3),
            environment={variable: value},
            quick=(variable, value) == ("COLUMNS", "1") and command in HELP[:2],
        )
        for variable, values in SPELLED.items()
        for value in values
        for command in COMMANDS
    ),
    Case(
        name="report: MPLBACKEND='nonsense'",
        given=(copy("run", "build"),),
        command="megabert report run",
        code=0,
        environment={"MPLBACKEND": "nonsense"},
        leaves=("run/loss.png",),
    ),
    Case(
        name="watch: a pid of 10^30 on this host",
        given=(copy("run"), *(set_json("run/status.json", *item) for item in LIVE.items())),
        command="megabert watch run --once",
        code=0,
        says=("its process is gone",),
        quick=True,
    ),
    *(
        Case(
            name=f"{command.split()[1]}: text that is not UTF-8: {place}",
            given=(copy("hf", "run", "lines.txt"),),
            command=command,
            code=(0, 2, 3, 4),
            leaves=("page.html", "*.npy", "new*"),
        )
        for place, command in (
            ("the text", f"megabert fill-mask --model hf 'the [MASK] {NOT_UTF8}'"),
            ("the text", f"megabert attention 'the {NOT_UTF8}' --model hf --output page.html"),
            ("the word", f"megabert similar --model hf {NOT_UTF8}"),
            ("the model", f"megabert fill-mask --model {NOT_UTF8} 'the [MASK]'"),
            ("the output", f"megabert embed lines.txt --model hf --output {NOT_UTF8}.npy"),
            ("a field", f"{PRETRAIN} --run-dir new --dry-run --model.hidden_size {NOT_UTF8}"),
            ("a flag", f"{PRETRAIN} --run-dir new --dry-run --{NOT_UTF8} 1"),
            ("the run folder", f"{PRETRAIN} --run-dir {NOT_UTF8} --dry-run"),
            ("the command", f"megabert {NOT_UTF8}"),
            ("the task", f"megabert finetune {NOT_UTF8} --model hf --data x"),
            ("the column", f"megabert finetune classification --model hf --data lines.txt --text-column {NOT_UTF8}"),
            ("the input", f"megabert-data build --input {NOT_UTF8} --output new"),
            ("the folder", f"megabert-data stats {NOT_UTF8}"),
        )
    ),
    *(
        Case(
            name=f"{command.split()[1]}: {command.split()[2]!r} in the place of a name",
            given=(copy("hf", "run"),),
            command=command,
            code=(2, 3, 4),
        )
        for word in (".", "..", "/", "-", "~", "''", "*", "./")
        for command in (
            f"megabert embed {word} --model hf",
            f"megabert watch {word} --once",
            f"megabert report {word}",
            f"megabert-data stats {word}",
            f"megabert-data peek {word}",
            f"megabert-data verify {word}",
        )
    ),
    *(
        Case(
            name=f"pretrain: a lock with {about}",
            given=(copy("run", "build"), write("run/.lock", content)),
            command=f"{PRETRAIN} --run-dir run",
            code=0,
            leaves=("run/*", "run"),
        )
        for about, content in (
            ("a pid of 10^30", '{"host": "h", "pid": 1' + "0" * 30 + ', "ranks": [["h", 1' + "0" * 30 + "]]}"),
            ("a pid of 10^5000", '{"pid": 1' + "0" * 5000 + "}"),
            ("a negative pid", '{"pid": -1, "ranks": [["h", -1]]}'),
            ("a list", "[]"),
            ("bytes", "\x00\xff"),
            ("a host of control characters", '{"host": "\\u001b[2J", "pid": 1}'),
            ("nothing", ""),
        )
    ),
]
