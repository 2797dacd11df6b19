"""Pushing an exported folder to a stand-in for the Hugging Face Hub, interrupting it, and loading it back."""

import logging
import multiprocessing
import os
import re
import signal
import threading

import pytest
import transformers
from huggingface_hub import HfApi, constants
from support import hub_server
from support.hub_server import Fault, sha256
from transformers import AutoModel, AutoTokenizer
from unit.downstream.publish.conftest import exported

from megabert.downstream.publish.hub import PushTarget, open_hub, push_folder
from megabert.foundation.errors import ConfigError, DataError

REPO = "owner/little-bert"
STEP_6 = PushTarget(repo=REPO, revision="step-6")
ONLY_STEP_4 = PushTarget(repo=REPO, revision="step-4", has_main=False)


def push(folder, target=STEP_6):
    return push_folder(folder, open_hub(target.repo), target, message="Step 6 of debug")


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pushed(server, revision):
    repository = server.repositories[REPO]
    files = dict(repository.commits[repository.branches[revision]])
    assert files.pop(".gitattributes")
    return files


def test_a_push_shows_the_folder_as_main_and_as_the_step(server, folder):
    assert push(folder) == f"{server.url}/{REPO}/tree/step-6"
    repository = server.repositories[REPO]
    assert pushed(server, "main") == pushed(server, "step-6") == files_of(folder)
    assert repository.branches["main"] == repository.branches["step-6"]
    assert repository.titles == ["initial commit", "Step 6 of debug"]
    assert not repository.is_private


@pytest.fixture(scope="module", autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()


def test_a_pushed_model_loads_by_name_and_revision(server, folder, tmp_path, config, tokenizer_dir):
    push(folder)
    other = exported(tmp_path / "other", config, tokenizer_dir, seed=1)
    push(other, ONLY_STEP_4)
    for revision, local in (("main", folder), ("step-6", folder), ("step-4", other)):
        model, own = AutoModel.from_pretrained(REPO, revision=revision), AutoModel.from_pretrained(local)
        assert all((model.state_dict()[name] == value).all() for name, value in own.state_dict().items())
    assert AutoTokenizer.from_pretrained(REPO, revision="step-4")("the cat sat").input_ids


def test_a_second_revision_leaves_main_and_uploads_only_what_is_new(server, folder, tmp_path, config, tokenizer_dir):
    push(folder)
    main = pushed(server, "main")
    other = exported(tmp_path / "other", config, tokenizer_dir, seed=1)
    (other / "onnx/model.onnx").write_bytes((folder / "onnx/model.onnx").read_bytes())
    server.requests.clear()
    assert push(other, ONLY_STEP_4) == f"{server.url}/{REPO}/tree/step-4"
    assert pushed(server, "main") == main
    assert pushed(server, "step-4") == files_of(other)
    assert server.count("PUT /storage") == 1
    assert set(server.repositories[REPO].branches) == {"main", "step-6", "step-4"}


def test_the_same_push_again_changes_nothing_and_a_corrected_card_is_one_commit_to_each_branch(server, folder):
    push(folder)
    branches = dict(server.repositories[REPO].branches)
    server.requests.clear()
    push(folder)
    assert server.repositories[REPO].branches == branches
    assert server.count("PUT|/commit/") == 0
    card = folder / "README.md"
    card.write_text(card.read_text().replace("A test.", "Corrected."))
    push(folder)
    assert pushed(server, "main") == pushed(server, "step-6") == files_of(folder)
    assert (server.count("PUT"), server.count("/commit/")) == (0, 2)


def test_files_of_an_earlier_export_go_and_those_of_the_owner_stay(server, folder):
    push(folder)
    HfApi().upload_file(path_or_fileobj=b"picture", path_in_repo="plot.txt", repo_id=REPO)
    (folder / "onnx/model.onnx").unlink()
    push(folder)
    assert pushed(server, "main") == files_of(folder) | {"plot.txt": b"picture"}


@pytest.mark.parametrize(
    ("target", "place"),
    [
        *((STEP_6, place) for place in ("PUT", "/commit/", "POST .*/branch/")),
        *((ONLY_STEP_4, place) for place in ("PUT", "/commit/", "/branch/step-4")),
    ],
)
def test_an_interrupted_push_shows_nothing_and_continues(target, place, server, folder):
    graph = sha256((folder / "onnx/model.onnx").read_bytes())
    server.faults = [Fault(f"PUT .*{graph}" if place == "PUT" else place, times=10_000)]
    with pytest.raises(DataError, match="^" + re.escape(f"{server.url}/{REPO}: the push broke off (")) as stopped:
        push(folder, target)
    assert "Check the network and HF_ENDPOINT" in str(stopped.value)
    assert "the same command continues." in str(stopped.value)
    # Nobody sees a part of it: the branch is not there, and main is as it was, or whole.
    repository = server.repositories[REPO]
    assert target.revision not in repository.branches
    assert pushed(server, "main") == (files_of(folder) if place == "POST .*/branch/" else {})
    server.faults.clear()
    push(folder, target)
    assert pushed(server, target.revision) == files_of(folder)
    assert set(repository.branches) == {"main", target.revision}
    large = [len(content) for name, content in files_of(folder).items() if name.endswith(("onnx", "safetensors"))]
    assert server.stored_bytes == sum(large)  # nothing was taken twice


def test_a_killed_push_continues(server, folder):
    released = threading.Event()
    server.faults = [Fault(r"PUT /storage/.*", waits=released, status=500)]
    child = multiprocessing.get_context("fork").Process(target=push, args=(folder, ONLY_STEP_4))
    child.start()
    assert server.reached.wait(30)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    released.set()
    assert set(server.repositories[REPO].branches) == {"main", "unfinished-step-4"}
    push(folder, ONLY_STEP_4)
    assert pushed(server, "step-4") == files_of(folder)
    assert set(server.repositories[REPO].branches) == {"main", "step-4"}


@pytest.mark.parametrize("status", [None, 503, 429])
@pytest.mark.parametrize("place", ["/preupload/", "/objects/batch", "PUT"])
def test_a_transfer_that_breaks_off_is_tried_again(place, status, server, folder):
    server.faults = [Fault(place, status)]
    push(folder)
    assert pushed(server, "main") == pushed(server, "step-6") == files_of(folder)
    assert server.faults[0].times == 0


def test_a_server_without_storage_by_chunks_is_named_with_the_remedy(server, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with pytest.raises(DataError, match=r"the push broke off .*HF_HUB_DISABLE_XET=1.*continues"):
        push(folder)


def test_without_a_token_or_with_a_wrong_one_the_error_names_the_command_to_log_in(server, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match=r"not logged in to http://127.*`hf auth login`.*HF_TOKEN"):
        open_hub(REPO)
    assert not server.requests
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(ConfigError, match=r"refuses your token.*hf auth login"):
        open_hub(REPO)


def test_another_owners_repository_is_refused_before_any_upload(server, folder):
    target = PushTarget(repo="google/bert")
    with pytest.raises(ConfigError, match=r"the push was refused \(403: You don't have the rights"):
        push(folder, target)
    assert not server.count("PUT|preupload")


@pytest.mark.parametrize("name", ["bert", "a/b/c", "owner/", "owner/-bert", "o wner/bert"])
def test_a_name_that_no_repository_has_is_refused(name, server):
    with pytest.raises(ConfigError, match=f"--push {name}"):
        open_hub(name)
    assert not server.requests


def test_an_address_may_end_in_a_slash(server, folder, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"{server.url}/")
    assert push(folder) == f"{server.url}/{REPO}/tree/step-6"


def test_a_signature_of_the_storage_is_in_no_message(server, folder, monkeypatch, caplog):
    monkeypatch.setattr(hub_server, "SIGNATURE", "?X-Signature=secret")
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)  # to caplog
    server.faults = [Fault("PUT /storage", status=418, says="", times=10_000)]
    with pytest.raises(ConfigError, match=r"418: .*/storage/owner/little-bert/[0-9a-f]{64}'") as refused:
        push(folder)
    assert server.count("PUT /storage") <= 2, "a refusal is final, for each of two files"
    server.faults = [Fault("PUT /storage", status=503, says="", times=10_000)]
    with pytest.raises(DataError) as broken:
        push(folder)
    assert {record.name.partition(".")[0] for record in caplog.records} == {"huggingface_hub"}
    assert not any("secret" in text for text in (str(refused.value), str(broken.value), *caplog.messages))


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        *((url, ConfigError, "HF_ENDPOINT=") for url in ("nowhere", "http://x:port", "http://[", "ftp://127.0.0.1")),
        ("http://127.0.0.1:1", DataError, "http://127.0.0.1:1: cannot be reached .*HF_ENDPOINT"),
    ],
)
def test_an_address_that_is_none_or_where_nobody_answers_is_named(url, error, message, server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", url)
    with pytest.raises(error, match=message):
        open_hub(REPO)


@pytest.mark.parametrize("start", ["http://anna:hush@", "http://anna:hu@sh@", "ftp://anna:hush@", "anna:hush@"])
def test_a_password_in_the_address_is_in_no_message(start, server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"{start}127.0.0.1:1")
    with pytest.raises((ConfigError, DataError), match=r"127.0.0.1:1: (cannot be reached|is no address)") as refused:
        open_hub(REPO)
    assert not {"hu", "sh", "hush", "anna"} & {*re.split(r"\W+", str(refused.value))}


def test_a_password_in_the_address_is_in_no_refusal_of_the_server(server, folder):
    api = open_hub(REPO)
    api.endpoint = server.url.replace("//", "//anna:hush@")  # it takes the place of the token, so the Hub refuses it
    with pytest.raises(ConfigError, match=f"^{server.url}/{REPO}: .*401") as refused:
        push_folder(folder, api, STEP_6, message="Step 6")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("license", "error", "message"),
    [
        (b"my-own", ConfigError, r"README.md: was refused: .*license.*Nothing was uploaded"),
        (b"caf\xe9", DataError, r"README.md: is not UTF-8 \(byte 0xe9\)"),
    ],
)
def test_a_card_that_is_unfit_is_named_before_any_upload(license, error, message, server, folder):
    card = folder / "README.md"
    card.write_bytes(card.read_bytes().replace(b"license: apache-2.0", b"license: " + license))
    with pytest.raises(error, match=message):
        push(folder)
    assert not server.count("PUT|/commit/")


def test_private_makes_a_private_repository_and_refuses_a_public_one(server, folder):
    private = PushTarget(repo=REPO, is_private=True)
    assert push(folder, private) == f"{server.url}/{REPO}"
    assert server.repositories[REPO].is_private
    server.repositories[REPO].is_private = False
    with pytest.raises(ConfigError, match=r"--private: .*is public"):
        push(folder, private)
