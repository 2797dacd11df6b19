"""A run's checkpoints, pushed by the command and loaded by name; HF_ENDPOINT names the stand-in."""

import json
import subprocess
import sys

import yaml
from forked.client import environment_of_commands
from huggingface_hub import ModelCard
from support.hub_server import TOKEN, running

SCRIPT = """
import sys
import transformers
from megabert.cli import main

def push(to, *words):
    assert main(["export", "uninterrupted", "--to", to, "--push", "owner/debug", *words]) == 0

push(f"{sys.argv[1]}/last", "--language", "en", "--license", "mit", "--scores", f"{sys.argv[1]}/pairs.json")
push(f"{sys.argv[1]}/12", "--checkpoint", "12", "--license", "mit")
for revision, name in (("main", "last"), ("step-13", "last"), ("step-12", "12")):
    pushed = transformers.AutoModelForMaskedLM.from_pretrained("owner/debug", revision=revision).state_dict()
    local = transformers.AutoModelForMaskedLM.from_pretrained(f"{sys.argv[1]}/{name}").state_dict()
    assert all((pushed[key] == value).all() for key, value in local.items())
print(transformers.AutoTokenizer.from_pretrained("owner/debug", revision="step-12").mask_token)
"""


def test_checkpoints_of_a_run_are_pushed_and_loaded_by_name(uninterrupted_run, tmp_path):
    run = uninterrupted_run.run_dir
    pairs = {"model": str(run), "checkpoint": "last", "mask": "token", "sets": [{"name": "english", "pairs": 4}]}
    pairs["sets"][0]["accuracy"] = 0.75
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    with running() as server:
        own = {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
        environment = {**environment_of_commands(), **own}
        done = subprocess.run(command, cwd=run.parent, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("pushed")]
    assert shown == [
        f"pushed as step-13 and main: {server.url}/owner/debug/tree/step-13",
        f"pushed as step-12: {server.url}/owner/debug/tree/step-12",
    ]
    assert done.stdout.splitlines()[-1] == "[MASK]"
    assert "Traceback" not in done.stderr
    repository = server.repositories["owner/debug"]
    assert repository.titles[1:] == ["Step 13 of debug", "Step 12 of debug"]
    card = ModelCard((tmp_path / "last/README.md").read_text()).data
    held_out, pairs = card.eval_results[0], card.eval_results[-1]
    assert (held_out.task_type, held_out.dataset_type) == ("fill-mask", "held-out")
    assert (pairs.dataset_name, pairs.metric_value) == ("minimal pairs english", 0.75)
    assert yaml.safe_load((tmp_path / "12/README.md").read_text().split("---\n")[1])["license"] == "mit"
