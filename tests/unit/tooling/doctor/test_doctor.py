"""The doctor on this machine, among ranks that fail, and its page."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked.client import run_command
from support.measured_rates import rates
from support.processes import free_port
from torch.distributed import TCPStore

from megabert.distributed.environments import LAUNCHERS
from megabert.foundation.errors import ConfigError
from megabert.ops.backend import Backend, no_obstacle
from megabert.tooling.doctor import probe
from megabert.tooling.doctor.devices import check_devices, check_ops, explain
from megabert.tooling.doctor.examination import SHARED, examine, judge
from megabert.tooling.doctor.finding import Finding, is_fit, merge_findings, render
from megabert.tooling.doctor.machine import check_disk
from megabert.tooling.doctor.probe import Answer, probe_locally, probe_world
from megabert.tooling.measurements.measured import read_measured

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def code_on_the_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def ok(text: str) -> Finding:
    return Finding(area="devices", level="ok", text=text)


def test_this_machine_is_fit(tmp_path, megabert):
    report = json.loads(megabert("doctor", "--json", "--quick", "--device", "cpu", "--run-dir", tmp_path / "new").out)
    assert report["fit"]
    texts = [finding["text"] for finding in report["findings"]]
    assert any("gloo all-reduce over 2 ranks" in text for text in texts)
    assert any(f"{tmp_path} can be written" in text for text in texts)
    assert not list(tmp_path.iterdir()), "no file is left"


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from megabert.cli import main; sys.exit(main())"
"""Python cannot find such a module."""


def test_machine_without_torch_is_told_so(tmp_path):
    command = [sys.executable, "-c", WITHOUT_TORCH, "doctor", "--quick", "--run-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "torch is not importable" in done.stdout
    assert "make install" in done.stdout
    assert f"{tmp_path} can be written" in done.stdout, "what needs no torch is checked"
    assert not done.stderr
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    rank = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)
    assert rank.returncode == 2
    assert "torch is not importable" in rank.stderr, "nobody else can say it"


def test_rank_that_sees_another_run_folder_is_named(tmp_path):
    for name in ("run0", "run1"):
        (tmp_path / name).mkdir()
    output, errors = tmp_path / "output", tmp_path / "errors"
    words = ["doctor", "--run-dir", str(tmp_path / "run"), "--quick"]
    assert run_command("integration.programs.apart", words, output, stderr=errors, ranks=2, timeout_s=120) == 2
    shown = output.read_text()
    assert "gloo all-reduce over 2 ranks" in shown
    assert "is not the folder that rank 0 sees" in shown
    assert "(rank 1)" in shown
    assert [(tmp_path / f"run{rank}.code").read_text() for rank in (0, 1)] == ["2", "0"], "one verdict, rank 0's"
    assert shown.count("check(s) FAILED") == 1


def test_file_that_cannot_be_saved_ends_all_ranks_with_one_message(tmp_path):
    file, output = tmp_path / "nowhere" / "proof.json", tmp_path / "output"  # as only rank 0 may see it
    words = ["doctor", "--run-dir", str(tmp_path), "--prove", "--recipe", "debug", "--device", "cpu"]
    assert run_command("megabert", [*words, "--save", str(file)], output, ranks=2, timeout_s=60) == 2
    (message,) = output.read_text().splitlines()
    assert "nowhere does not exist. Create it." in message


def test_unreachable_rank_zero_is_one_clear_error(monkeypatch):
    port = free_port()
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    for name, value in {**rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"rank 1.*MASTER_PORT={port} cannot be reached: .*refused"):
        probe_world([], device="cpu", meeting_s=0.1)


def test_ranks_that_torchrun_starts_again_do_not_read_earlier_answers(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    torchruns = TCPStore("127.0.0.1", port := free_port(), is_master=True, wait_for_workers=False)
    rank = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    stores = []
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        stores.append(probe._open_store(rank, 60.0))
    stores[0].set("here/1", "{}")
    assert [store.check(["here/1"]) for store in stores] == [True, False]
    del torchruns  # it listens until here


def answered(rank: int, host: str, **collectives: str) -> Answer:
    return Answer(rank=rank, host=host, local=[], collectives=collectives, all_reduce_ms={})


SILENT = {rank: Answer(rank=rank, host=f"node{rank}", local=[]) for rank in (0, 1)}
ECC, NO_ROUTE, UNSEEN = "RuntimeError: ECC", "RuntimeError: no route", "FileNotFoundError: x"


@pytest.mark.parametrize(
    ("answers", "where", "says"),
    [
        ([SILENT[0], Answer(rank=1)], "", ("node1: rank(s) 1 of 2 did not come", "--exclude")),
        ([answered(0, "node0", gloo="", nccl=""), answered(1, "node1", gloo="", nccl=ECC)], "node1 (rank 1)", (ECC,)),
        ([answered(rank, f"node{rank}", gloo=NO_ROUTE) for rank in range(3)], "all ranks", ("GLOO_SOCKET_IFNAME",)),
        ([answered(0, "a", **{SHARED: ""}), answered(1, "b", **{SHARED: UNSEEN})], "b (rank 1)", ("share",)),
        ([answered(0, "node0", gloo=""), SILENT[1]], "node1 (rank 1)", ()),
    ],
    ids=["absent", "one node", "all alike", "folder not shared", "no answer"],
)
def test_failure_is_named_with_its_place_and_remedy(answers, where, says):
    expected = ["node0", "node1"] if not where else ()
    (failed,) = [finding for finding in judge(answers, expected_hosts=expected) if finding.level == "failed"]
    assert failed.where == where
    assert all(word in failed.text + failed.remedy for word in says)


def test_findings_of_all_ranks_stand_once_and_others_with_their_place():
    by_rank = [ok("H200")], [ok("H200")], [ok("H200"), ok("slow")]
    merged = merge_findings(["node1", "node1", "node2"], [list(map(vars, findings)) for findings in by_rank])
    assert [(finding.text, finding.where) for finding in merged] == [("H200", ""), ("slow", "node2 (rank 2)")]


def test_page_ends_with_the_failures():
    bad = Finding(area="disk", level="failed", text="full", remedy="free some", where="node2 (rank 3)")
    assert not is_fit([ok("x"), bad])
    page = render([ok("x"), bad])
    assert "FAILED" in page
    assert page.splitlines()[-1] == "1 check(s) FAILED: disk on node2 (rank 3)"


def test_gpu_that_is_asked_for_and_absent_fails(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("megabert.tooling.doctor.devices.shutil.which", lambda name: None)
    assert [finding.level for finding in check_devices("cuda")] == ["failed"]
    assert [finding.level for finding in check_devices("auto")] == ["ok"]


def test_cpu_build_on_a_machine_with_a_driver_says_how_to_install_the_other(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("megabert.tooling.doctor.devices.shutil.which", lambda name: f"/usr/bin/{name}")
    assert "CUDA=1 make install" in check_devices("cuda")[0].remedy


def test_more_ranks_than_gpus_fails(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    (finding,) = check_devices("cuda", local_rank=1)
    assert (finding.level, finding.text) == ("failed", "local rank 1 has no GPU: this process sees 1")
    assert "without --gpus-per-task or --gpu-bind" in finding.remedy, "SLURM may show each task one GPU alone"


def test_single_task_of_a_job_is_a_machine_all_of_whose_gpus_are_tried(tmp_path, monkeypatch):
    for name, value in {"PROCID": "0", "STEP_ID": "0", "STEP_NUM_TASKS": "1", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("megabert.tooling.doctor.devices._gpu", lambda index: ok(f"GPU {index}"))
    asked = []
    monkeypatch.setattr(
        "megabert.tooling.doctor.probe.probe_locally", lambda ranks, device: asked.append((ranks, device)) or []
    )
    findings = examine(tmp_path, device="auto", is_quick=True)
    assert [f"GPU {index}" for index in range(8)] == [one.text for one in findings if one.area == "devices"]
    assert asked == [(8, "cuda")]


def test_ranks_on_this_machine_meet_each_other_and_not_the_launchers_agent(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # as torchrun with one process sets it
    environments = []
    monkeypatch.setattr(
        "megabert.tooling.doctor.probe.subprocess.Popen", lambda *_, env, **__: environments.append(env) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        probe_locally(2, device="cpu")
    assert environments[0]["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_a_rank_goes_by_slurms_name_of_its_node(monkeypatch):
    for launcher in LAUNCHERS:
        for name in launcher.needs:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "node7")  # whose host name may be node7.cluster.example.org
    monkeypatch.setattr("megabert.tooling.doctor.probe._reduce", lambda *_, **__: 1.0)
    assert [answer.host for answer in probe_world([], device="cpu")] == ["node7"]


def test_unwritable_folder_fails():
    (finding,) = check_disk(Path("/proc"), is_quick=True)  # which takes no files from anybody
    assert finding.level == "failed"
    assert "--run-dir" in finding.remedy


def test_disk_speed_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("megabert.tooling.doctor.machine.FULL_BYTES", 2**20)
    assert "MiB/s written and synced" in check_disk(tmp_path, is_quick=False)[0].text
    assert not list(tmp_path.iterdir())


def test_ops_say_why():
    table = (Backend("fast", "x:y", lambda device: "no card"), Backend("torch", "x:y", no_obstacle))
    assert explain(table, "cpu") == ("torch", "fast: no card")
    assert all("torch on cpu" in finding.text for finding in check_ops("cpu"))


def test_proof_is_printed_and_saved_beside_the_verdict(tmp_path, monkeypatch, megabert):
    bad = Finding(area="links", level="failed", text="0.01 GB/s", remedy="look", where="a (rank 0) - b (rank 1)")
    asked = []
    proven = SimpleNamespace(findings=[bad], measured=rates())
    monkeypatch.setattr("megabert.tooling.doctor.examination.examine", lambda *_, **options: [ok("H200")])
    monkeypatch.setattr(
        "megabert.tooling.doctor.proof.prove", lambda config, *_, **__: asked.append(config.model.hidden_size) or proven
    )
    path = tmp_path / "proof.json"
    words = ["doctor", "--prove", "--recipe", "debug", "--model.hidden-size", "256", "--save", str(path)]
    printed = megabert(*words, code=2).out  # a slow link is no machine to train on
    assert asked == [256]
    assert printed.splitlines()[-1] == "1 check(s) FAILED: links on a (rank 0) - b (rank 1)"
    assert read_measured(path) == rates()
    assert not json.loads(path.read_text())["fit"]


def test_a_machine_that_is_unfit_is_not_proven(monkeypatch, megabert):
    bad = Finding(area="devices", level="failed", text="no GPU")
    monkeypatch.setattr("megabert.tooling.doctor.examination.examine", lambda *_, **options: [bad])
    monkeypatch.setattr("megabert.tooling.doctor.proof.prove", lambda *_, **__: pytest.fail("ranks would hang"))
    megabert("doctor", "--prove", "--recipe", "debug", code=2)


def test_a_file_that_cannot_be_saved_is_refused_before_the_checks(monkeypatch, tmp_path, megabert):
    monkeypatch.setattr("megabert.tooling.doctor.examination.examine", lambda *_, **options: pytest.fail("it is slow"))
    said = megabert("doctor", "--prove", "--recipe", "debug", "--save", tmp_path / "nowhere" / "proof.json", code=2).err
    assert "nowhere does not exist. Create it." in said
    assert "is a folder" in megabert("doctor", "--prove", "--recipe", "debug", "--save", tmp_path, code=3).err


@pytest.mark.parametrize("flag", ["--save", "--recipe", "--model.hidden-size"])
def test_flags_of_a_proof_are_refused_without_it(flag, megabert):
    message = megabert("doctor", flag, "256", code=2).err
    assert flag in message
    assert "without --prove" in message
