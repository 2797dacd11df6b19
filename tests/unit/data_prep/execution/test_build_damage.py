"""What a build left is hashed before it is believed: damage is done again or named, and never changes a shard."""

import json
import os

import pytest
from unit.data_prep.builds import hashes
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.execution.build_state import read_state
from megabert.foundation.errors import DataError
from megabert.foundation.json_files import seal


def rewrite_unnoticed(path, content):
    """Give a file other bytes, and the time that it had."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_input_of_equal_size_and_time_is_refused(build, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    own = {"sources": (SourceConfig(input=str(path)),), "lengths": (64,), "dupe_factor": 1, "vocab_size": 800}
    build(**own)
    path.touch()
    build(**own)  # the same text at another time is fine
    rewrite_unnoticed(path, path.read_bytes().replace(b"the", b"teh", 1))
    with pytest.raises(DataError, match=r"other input .*in\.jsonl changed"):
        build(**own)


def flip(copy, other, part):
    content = bytearray((copy / part).read_bytes())
    content[len(content) // 2] ^= 1
    rewrite_unnoticed(copy / part, content)


def swap_counts(copy, other, step):
    """The hash of a record is of its name, its files and its counts together."""
    records = copy / "work" / "records" / f"{step}.jsonl"
    lines = [line for line in records.read_bytes().splitlines() if line]
    counts = [line[line.index(b'"counts"') :] for line in lines]
    swapped = zip(lines, [*counts[1:], counts[0].replace(b"a", b"b", 1)], strict=True)
    records.write_bytes(b"".join(line[: line.index(b'"counts"')] + own + b"\n" for line, own in swapped))


def take_another_builds(copy, other, part):
    """A shard and its record, both sound, of a build with another seed."""
    for name in (part, "work/records/instances-64.jsonl"):
        (copy / name).write_bytes((other().folder / name).read_bytes())


def replace_record(copy, other, content):
    records = copy / "work" / "records" / "instances-64.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(b"".join(content if b"train-00001-00" in line else line for line in lines))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        *((flip, part) for part in ("instances/64/train-00001-01.arrow", "documents/train-00001.arrow")),
        *((swap_counts, step) for step in ("documents", "instances-64", "tokenizer")),
        (take_another_builds, "instances/64/train-00001-00.arrow"),
        (replace_record, b""),
        (replace_record, b'{"name": "train-00001-00"'),
        (replace_record, b'{"sha256": "0", "name": "train-00001-00\n\0\xff\n'),
    ],
)
def test_damage_is_noticed_and_made_anew(built, own_copy, build, damage, what):
    damage(own_copy, lambda: build("other", seed=1), what)
    build(own_copy)
    assert hashes(own_copy) == hashes(built.folder)


def test_damaged_statistics_of_a_manifest_are_written_again(built, own_copy, build):
    manifest = own_copy / "instances" / "64" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"full_length": ', b'"full_length": 1'))
    build(own_copy)
    assert manifest.read_bytes() == (built.folder / "instances" / "64" / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.replace(b'"train": 4', b'"train": 3', 1),
        lambda plan: plan.replace(b'"tokens": ', b'"tokens": 1', 1),
        lambda plan: b"{",
        lambda plan: b"",
    ],
    ids=["one bucket less", "more tokens", "no JSON", "empty"],
)
def test_damaged_plan_is_warned_of_and_made_again(built, own_copy, build, capsys, change):
    plan = own_copy / "work" / "plan.json"
    before = plan.read_bytes()
    assert change(before) != before
    rewrite_unnoticed(plan, change(before))
    build(own_copy)
    said = capsys.readouterr().err
    assert "plan.json: damaged or edited (its SHA-256 does not fit). Steps 1 to 5 are done again" in said
    assert plan.read_bytes() == before
    assert hashes(own_copy) == hashes(built.folder)


@pytest.mark.parametrize("content", ["[", "{}", ""])
def test_damaged_state_is_named_with_the_remedy(own_copy, build, content):
    (own_copy / "build.json").write_text(content)
    with pytest.raises(DataError, match=r"build\.json: damaged or edited \(.*\)\. Finished shards can"):
        build(own_copy)


def sealed_again(path, context, change):
    """Change the content of a sealed file, and fit its hash."""
    content = json.loads(path.read_bytes())
    del content["sha256"]
    change(content)
    path.write_bytes(seal(content, context))


def test_plan_whose_counts_are_no_corpus_is_made_again_under_any_hash(built, own_copy, build, capsys):
    context = read_state(own_copy).context("plan")
    sealed_again(own_copy / "work" / "plan.json", context, lambda plan: plan["kept"].pop("documents"))
    build(own_copy)
    assert "plan.json: its statistics are damaged or edited (KeyError" in capsys.readouterr().err
    assert hashes(own_copy) == hashes(built.folder)


def test_state_of_another_version_is_refused(own_copy, build):
    sealed_again(own_copy / "build.json", "build.json", lambda state: state["config"].pop("seed"))
    with pytest.raises(DataError, match=r"its configuration is not one of this megabert\)\. Finished shards can"):
        build(own_copy)
