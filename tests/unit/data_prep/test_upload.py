"""A build whose output is a URL: its shards arrive whole, the manifest last, and an interrupted upload continues."""

import pytest
from support.faulty_server import serving_s3

from data_prep.upload import require_target
from megabert.foundation import remote_files
from megabert.foundation.cached_folders import cached_folder, fetch_files
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.files import sha256_file
from megabert.tokens.shards.checked_shards import verify_shards
from megabert.tokens.shards.shard_set import ShardSet

LOGIN = {"AWS_ACCESS_KEY_ID": "name-of-the-test", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test"}


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "RETRY_AFTER_S", (0.01, 0.01))
    cached_folder.cache_clear()
    for name, value in {**LOGIN, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "empty").mkdir()
    with serving_s3("corpus", tmp_path / "empty") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        import fsspec

        fsspec.filesystem("s3").clear_instance_cache()  # with the address of another test
        yield proxy


def puts(server):
    stored = [line.removeprefix("PUT /corpus/mine/") for line in server.requests if line.startswith("PUT")]
    return [name for name in stored if "probe" not in name]


TEXTS = [
    f"Sentence {i} is here and has words. The next one, {i * 7}, follows it. The third ends it." for i in range(40)
]


def test_interrupted_upload_continues_and_ends_with_the_manifest(server, small_build, tmp_path):
    words = ("--output", "s3://corpus/mine/", "--build-dir", tmp_path / "local", "--validation-share", "0.1")
    server.faults = [("GET /corpus/mine/instances/32/train", "flip always")]
    assert "s3://corpus/mine/instances/32/train-0" in small_build(*words, texts=TEXTS, code=3).err
    before = puts(server)
    assert "instances/32/manifest.json" not in before
    # The same command uploads the rest, and once more nothing.
    server.faults = []
    server.requests.clear()
    assert "uploaded and read back" in small_build(*words, texts=TEXTS).err
    assert puts(server)[-1] == "instances/32/manifest.json"
    assert not set(puts(server)) & {name for name in before if "tokenizer" in name}
    server.requests.clear()
    assert "s3://corpus/mine/: 0 files" in small_build(*words, texts=TEXTS).err
    assert not puts(server)
    # What was uploaded is what a run reads.
    folder = cached_folder("s3://corpus/mine/instances/32", str(tmp_path / "cache"))
    fetch_files(folder)
    local = tmp_path / "local" / "instances" / "32"
    for path in local.glob("*.arrow"):
        assert sha256_file(folder / path.name) == sha256_file(path)
    for split in ("train", "validation"):
        verify_shards(ShardSet.open(folder, split))


def test_folder_of_a_url_is_its_last_part_here(server, small_build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = small_build("--output", "s3://corpus/mine", texts=TEXTS)
    assert "shards mine/instances" in printed.out
    assert "--data.path mine" in printed.out


def test_unfit_targets_are_refused_before_the_build(server, small_build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--output s3://corpus/mine: has a login"):
        require_target("s3://name:word@corpus/mine")
    with pytest.raises(DataError, match="cannot be written"):
        require_target("s3://no-such-bucket/mine")
    for url in (server.url, "memory://mine"):
        refused = small_build("--output", url, "--dry-run", texts=TEXTS, code=2).err
        assert "nothing is stored for others by this protocol" in refused
    require_target("s3://corpus/mine")
    assert [line.split()[0] for line in server.requests if "corpus/mine/" in line] == ["PUT", "DELETE"]
    server.faults = [("corpus", "500 always")]
    with pytest.raises(DataError, match="cannot be written"):
        require_target("s3://corpus/mine")
    assert "--build-dir has no effect" in small_build("--build-dir", "x", texts=TEXTS, code=2).err
