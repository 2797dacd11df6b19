"""Peak memory of a worker: bounded whatever the size of the corpus, of a line, of a file that cannot be cut."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_MIB = 512
BYTES = 200_000_000
# The kernel's figure of this program alone: that of a child that has ended (`ru_maxrss`) begins with the parent's.
PROGRAM = """
import sys
from data_prep.cli import main
code = main(sys.argv[1:])
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)
"""

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")]


def test_a_corpus_twenty_times_larger_takes_no_more():
    """29 MB of text against 1.5 MB, in units of the same size; the benchmark says which stage takes what."""
    flags = ["--small-mb", "1.5", "--times", "20", "--chunk-mib", "0.25", "--bucket-mb", "2"]
    command = [sys.executable, "benchmarks/bench_memory.py", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def long_line(path):
    with open(path, "w") as stream:
        stream.write('{"text": "')
        stream.writelines("One sentence of many. " for _ in range(BYTES // 22))
        stream.write('"}\n')
    return "utf-8"


def utf_16(path):
    text = "One sentence of many. Another sentence follows it. " * 40
    with open(path, "w", encoding="utf-16") as stream:
        for number in range(BYTES // 2 // len(text)):
            stream.write(json.dumps({"text": f"Number {number}. {text}"}) + "\n")
    return "utf-16"


@pytest.mark.parametrize(("write", "dropped"), [(long_line, 1), (utf_16, 0)])
def test_200_mb_that_cannot_be_cut_are_read_in_bounds(write, dropped, tmp_path):
    encoding = write(tmp_path / "a.jsonl")
    line = json.dumps({"text": "A document of its own. It has two sentences."}) + "\n"
    with open(tmp_path / "a.jsonl", "a", encoding="utf-16-le" if encoding == "utf-16" else encoding) as stream:
        stream.writelines(line.replace("own", f"own {number}") for number in range(50))
    output = tmp_path / "out"
    flags = f"--encoding {encoding} --vocab-size 150 --validation-share 0 --dupe-factor 1 --workers 1".split()
    command = [sys.executable, "-c", PROGRAM, "build", "--input", str(tmp_path / "a.jsonl"), *flags]
    done = subprocess.run([*command, "--output", str(output)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout)
    peak_mib = int(done.stdout.split()[-1]) / 1024
    print(f"{peak_mib:.0f} MiB")
    manifest = json.loads((output / "instances" / "128" / "manifest.json").read_text())
    corpus = manifest["statistics"]["corpus"]
    assert corpus["dropped"].get("oversized_documents", 0) == dropped
    assert peak_mib <= LIMIT_MIB
