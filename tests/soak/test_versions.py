"""Each Python and torch of docs/requirements.md: the wheel in its own environment, from text to a score, then tests.

An environment with a CUDA build of torch takes 8 GB of disk and is deleted at the end of its row. A row is skipped, and
the output says so, if no such Python is on the PATH. The tests import the checkout, which the wheel was built from.
"""

import json
import re
import shutil

import pytest
from soak.soak_table import SoakTable
from support.installed_wheel import ROOT, build_dist, call, from_text_to_a_score

VERSIONS = [("3.11", "2.11"), ("3.11", "2.13"), ("3.11", "2.14"), ("3.12", "2.13"), ("3.13", "2.14"), ("3.14", "2.14")]
STEPS = ["--phases.0.steps", "15", "--phases.1.steps", "5", "--checkpoint.every-steps", "10"]
TESTS = (
    *(
        "unit/foundation/test_compiled.py",
        "unit/tokens/shards",
        "unit/tokens/test_masking.py",
        "unit/tokens/test_masking_loops.py",
        "unit/tokens/tokenization/test_tokenizer.py",
    ),
    *("unit/models/test_bert.py", "unit/ops/test_layer_norm.py", "unit/ops/test_cross_entropy.py", "unit/optim"),
    *("several_ranks/test_engine_bert.py", "integration/test_golden.py"),
)
"""Compiled loops, Arrow, tokenizers, modules, autograd, optimizers, DeepSpeed on two ranks, and 50 golden losses."""
PACKAGES = ("torch", "triton", "deepspeed", "numpy", "numba", "pyarrow", "tokenizers", "transformers")
ASK = "import json, sys, importlib.metadata as m; names = set(m.packages_distributions()); " + (
    f"print(json.dumps([sys.version.split()[0], *(n + ' ' + m.version(n) for n in {PACKAGES} if n in names)]))"
)

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    (wheel,) = build_dist(tmp_path_factory.mktemp("release")).glob("*.whl")
    return wheel


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("python", "torch"), VERSIONS)
def test_supported_version_goes_from_text_to_a_score_and_passes_tests(python, torch, wheel, tmp_path):
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        pytest.skip(f"python{python} is not on the PATH")
    environment = tmp_path / "venv"
    bin_ = environment / "bin"
    try:
        call(interpreter, "-m", "venv", environment, cwd=tmp_path)
        wanted = [wheel, f"torch=={torch}.*", "transformers", "pytest", "pytest-timeout"]
        call(bin_ / "pip", "install", "-q", "--no-cache-dir", "--no-compile", *wanted, cwd=tmp_path)
        scores = from_text_to_a_score(bin_, tmp_path / "work", steps=STEPS)
        tests = [ROOT / "tests" / name for name in TESTS]
        shown = call(bin_ / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=ROOT)
        versions = json.loads(call(bin_ / "python", "-c", ASK, cwd=tmp_path))
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    passed = re.search(r"\d+ passed[^\n]* in", shown)[0].removesuffix(" in")
    table = SoakTable("versions", "the wheel in environments of their own, and tests there", "versions | score | tests")
    table.add(f"{' | '.join(versions)} | accuracy {scores['accuracy']:.2f} | {passed}")
