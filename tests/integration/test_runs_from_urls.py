"""Runs whose shards are at a URL train as from the folder itself, bit for bit, whatever the server does."""

import json
import shutil
import subprocess

import pytest
from support.faulty_server import proxying, serving_files, serving_s3
from support.runs import Run, assert_equal_runs, finished

LOGIN = {"AWS_ACCESS_KEY_ID": "name-of-the-test", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test"}


@pytest.fixture(scope="session")
def unbroken(shards, run_once):
    return run_once("from_a_folder", shards)


@pytest.fixture
def server(shards):
    with serving_files(shards) as port, proxying(port) as proxy:
        yield proxy


def url_run(folder, server, name="run", **flags):
    own = {"data.cache": folder / "cache", **flags}
    return Run(folder / name, server and server.url, flags=own)


def fetched(server):
    return sorted(line for line in server.requests if ".arrow" in line)


def half_files(folder):
    return [path for path in folder.rglob("*") if path.name.endswith(".tmp")]


def test_ranks_train_from_a_faulty_server_as_from_the_folder(shards, server, tmp_path):
    local = finished(tmp_path / "local", shards, ranks=2)
    run = url_run(tmp_path, server)
    run.ranks = 2
    server.faults = [("train", kind) for kind in ("503", "cut", "flip", "drop", "short")] + [("tokenizer", "500")]
    run.finish_well()
    assert not server.faults
    assert_equal_runs(run, local)
    assert len(fetched(server)) == len(set(fetched(server))) + 5, "once for both ranks, and again for each fault"
    assert not half_files(tmp_path)
    assert server.url in (run.run_dir / "config.yaml").read_text()
    checked = json.loads((run.run_dir / "checked_shards.json").read_text())
    assert {str(path) for path in (tmp_path / "cache").rglob("train-*.arrow")} < checked.keys(), "of both phases"


def test_two_runs_fill_one_cache_together(unbroken, server, tmp_path):
    both = url_run(tmp_path, server, "run")
    both.ranks, both.module = 2, "integration.programs.apart"
    both.finish_well()
    for name in ("run0", "run1"):
        assert_equal_runs(url_run(tmp_path, server, name), unbroken)
    assert len(fetched(server)) == len(set(fetched(server)))


def test_killed_run_that_lost_its_cache_resumes_with_the_second_phase_alone(unbroken, server, tmp_path):
    run = url_run(tmp_path, server)
    shutil.copytree(unbroken.run_dir, run.run_dir)
    for step in (11, 12, 13):
        shutil.rmtree(run.run_dir / "checkpoints" / f"step_{step:08d}", ignore_errors=True)
    run.finish_well()
    assert_equal_runs(run, unbroken)
    assert {line.split("/")[2] for line in fetched(server)} == {"128"}


def test_wrong_bytes_are_a_sentence_before_the_run_is_begun(server, tmp_path):
    run = url_run(tmp_path, server)
    server.faults = [("64/train", "flip always")]
    assert run.finish() == 3
    assert f"{server.url}/instances/64/train-" in run.output
    assert "the manifest says" in run.output
    assert "Upload it again" in run.output
    assert not run.run_dir.exists()
    assert not half_files(tmp_path)
    assert not list((tmp_path / "cache").rglob("train*"))


@pytest.mark.parametrize("small_disk", ["80k"], indirect=True)
def test_full_disk_of_the_cache_is_a_sentence(server, small_disk, tmp_path):
    run = url_run(tmp_path, server, **{"data.cache": small_disk / "cache"})
    assert run.finish() == 3
    assert "no space left" in run.output
    assert not run.run_dir.exists()
    assert not half_files(small_disk)


def test_training_from_s3_equals_the_local_run_and_writes_no_login(unbroken, shards, tmp_path, monkeypatch):
    for name, value in {**LOGIN, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    with serving_s3("corpus", shards) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        server.faults = [("GET /corpus/instances/64/train", "flip"), ("GET /corpus/instances/128/train", "503")]
        run = url_run(tmp_path, server, **{"data.path": "s3://corpus/"})
        run.finish_well()
        assert not server.faults
    assert_equal_runs(run, unbroken)
    for secret in LOGIN.values():
        found = subprocess.run(["grep", "-rl", secret, str(tmp_path)], capture_output=True, text=True, check=False)
        assert found.stdout == ""


def test_https_from_a_server_with_a_certificate_of_its_own(unbroken, shards, tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving_files(shards, certificate=(certificate, key)) as port:
        run = url_run(tmp_path, None, **{"data.path": f"https://127.0.0.1:{port}"})
        run.launcher = "none"  # aiohttp reads the environment when it is imported
        run.finish_well()
    assert_equal_runs(run, unbroken)


def test_plans_read_a_url_without_most_of_its_shards(server, tmp_path, megabert, shards):
    lengths = ("--phases.0.max-seq-length", 64, "--phases.1.max-seq-length", 128)
    flags = ("--recipe", "debug", *lengths, "--device", "cpu")
    where = ("--data.path", server.url, "--data.cache", tmp_path / "cache")
    plan = ("pretrain", "--dry-run", "--run-dir", tmp_path / "run")

    def sizes_of(plan):
        return [line for line in plan.splitlines() if "instances" in line and "/" not in line]

    local = sizes_of(megabert(*plan, *flags, "--data.path", shards).out)
    assert sizes_of(megabert(*plan, *flags, *where).out) == local != []
    assert not (tmp_path / "run").exists()
    server.requests.clear()
    assert "passes over the corpus" in megabert("estimate", *flags[:-2], *where).out
    assert not fetched(server)
