"""``srun megabert doctor --prove`` on two virtual nodes: one verdict, and rates that name both nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NARROW = {
    "hidden-size": 32, "num-attention-heads": 2, "intermediate-size": 64, "num-hidden-layers": 2, "vocab-size": 300,
}  # fmt: skip


@pytest.mark.soak
def test_slurm_nodes_prove_each_part_between_them(cluster, tmp_path):
    model = [word for name, value in NARROW.items() for word in (f"--model.{name}", str(value))]
    command = ["srun", "--nodes=2", "--ntasks-per-node=1", "--mem-per-cpu=0", "--time=5", "--kill-on-bad-exit=0"]
    command += [sys.executable, "-m", "integration.programs.quick_proof", "doctor", "--prove", "--recipe", "debug"]
    command += ["--device", "cpu", "--precision", "fp32", *model]
    command += ["--run-dir", str(tmp_path / "run"), "--save", str(tmp_path / "proof.json")]
    own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env={**cluster, **own}, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("everything that training needs works") == 1, "rank 0 alone has the verdict"
    assert "link between nodes: " in done.stdout
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert {finding["area"] for finding in proof["findings"]} >= {
        "ops",
        "collectives",
        "links",
        "engines",
        "checkpoint",
    }
    measured = proof["measured"]
    assert (measured["nodes"], measured["ranks_per_node"]) == (2, 1)
    assert {speed["scope"] for speed in measured["collectives"]} == {"network"}
