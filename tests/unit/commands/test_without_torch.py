"""Commands that plan or look at records, and errors in arguments, spare the seconds that torch takes to import."""

import json
import subprocess
import sys

from support.run_folders import train_row, write_run

from megabert.cli import PROGRAM

CALL = """
import json, sys
from megabert.cli import main
calls = json.loads(sys.argv[1])
for call in calls:
    try:
        code = main(call)
    except SystemExit as end:
        code = end.code or 0
    heavy = [name for name in ("torch", "deepspeed", "transformers", "scipy", "matplotlib") if name in sys.modules]
    print(json.dumps([code, heavy]), file=sys.stderr)
    if heavy:
        break
"""


def called(calls: list[list[str]]) -> list[tuple[list[str], int, list[str]]]:
    """Make calls one after the other in a fresh process; return each with its exit code and what it has imported."""
    done = subprocess.run([sys.executable, "-c", CALL, json.dumps(calls)], capture_output=True, text=True, check=True)
    ends = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    return [(call, *end) for call, end in zip(calls, ends, strict=False)]


WRONG = [
    (["pretrain", "--recipe", "debug", "--seeed", "1"], 2),
    (["pretrain", "--recipe", "debug", "--data.path", "missing"], 3),
    (["pretrain", "--recipe", "debug", "--data.path", "missing", "--dry-run"], 3),
    (["finetune", "mrpc", "--model", "m"], 2),
    (["finetune", "mrcp"], 2),
    (["evaluate"], 2),
    (["estimate", "--gpu", "z80"], 2),
    (["compare", "missing", "missing"], 4),
    (["watch", "missing"], 4),
    (["report", "missing"], 4),
    (["export", "missing", "--to", "folder"], 4),
    (["doctor", "--device", "abacus"], 2),
    (["fill-mask", "--model", "missing", "a [MASK]"], 2),
    (["similar", "--model", "missing", "king"], 2),
    (["attention", "--model", "missing", "text", "--output", "page.html"], 2),
    (["embed", "--model", "missing", "text.txt"], 2),
    (["evaluate", "mlm", "--model", "missing", "--data", "text.txt"], 2),
    (["finetune", "mrpc", "--model", "missing", "--data", "folder"], 2),
]


def test_wrong_arguments_are_refused_without_torch():
    assert called([call for call, _ in WRONG]) == [(call, code, []) for call, code in WRONG]


def test_help_and_plans_need_no_torch():
    calls = [[], *([name, "--help"] for name in PROGRAM.commands), ["estimate", "--json"]]
    calls += [["pretrain", "--print-config"], ["estimate", "--recipe", "electra_small", "--gpu", "a100"]]
    assert called(calls[1:]) == [(call, 0, []) for call in calls[1:]]


def test_records_of_a_run_are_shown_without_torch(tmp_path):
    run = write_run(tmp_path / "run", [train_row(20, 7.5)])
    calls = [["watch", str(run), "--once"], ["compare", str(run), str(run)]]
    assert called(calls) == [(call, 0, []) for call in calls]
