import errno
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from unit.data_prep.conftest import write_jsonl

from data_prep.checks.verify import verify
from data_prep.config import SourceConfig
from data_prep.document_set import DocumentSet
from data_prep.execution import build_state
from data_prep.execution.executors import Executor, ProcessExecutor
from data_prep.extract import inputs
from data_prep.pipeline import build
from data_prep.steps import step2_vocabulary, step4_merge_chunks, step6_instances
from megabert.config.loading import to_dict
from megabert.errors import ConfigError, DataError
from megabert.schema import ShardMetadata, instance_schema, lengths_path, read_manifest, sha256_file

ROOT = Path(__file__).parents[3]


def hashes(folder):
    """SHA-256 of every file that a reader of the build sees."""
    paths = [path for part in ("instances", "documents", "tokenizer") for path in (folder / part).rglob("*")]
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(paths) if path.is_file()}


class Stopping(Executor):
    """Ends with an error after so many tasks, as a kill between two units would."""

    def __init__(self, tasks):
        self.left = tasks

    def run(self, function, tasks):
        for index, task in enumerate(tasks):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield index, function(task)


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bytes(built, make_config, tmp_path, workers):
    build(make_config(), tmp_path / "out", ProcessExecutor(workers))
    assert hashes(tmp_path / "out") == hashes(built.folder)


def test_chunks_merged_by_range_of_hashes_give_the_same_bytes(built, make_config, tmp_path, monkeypatch, capsys):
    """What terabytes take, with few chunks: two to a merged file, in several levels."""
    monkeypatch.setattr(step4_merge_chunks, "MAX_FILES", 2)
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1000)
    build(make_config(chunk_mib=0.02), tmp_path / "out", Executor())
    assert len(re.findall(r"^merge chunks: (\d+)/\1 units", capsys.readouterr().err, re.MULTILINE)) >= 3
    assert not (tmp_path / "out" / "work" / "spread").exists()
    before, after = (
        {name: digest for name, digest in hashes(folder).items() if name.endswith(".arrow")}
        for folder in (built.folder, tmp_path / "out")
    )
    assert after == before


def test_shards_of_several_buckets_hold_the_rows_of_each_one_after_the_other(built, make_config, tmp_path, monkeypatch):
    """What a corpus of gigabytes takes, with shards of a few kilobytes."""
    monkeypatch.setattr(step6_instances, "MIN_SHARDS", 2)
    tokenizer = str(built.folder / "tokenizer")
    parts, whole = (
        build(make_config(tokenizer=tokenizer, buckets=7, shard_mib=mib), tmp_path / str(mib), Executor())
        for mib in (0.01, 0.366)
    )
    before, after = (
        [entry for entry in result.manifests[64].shards if (entry.split, entry.duplicate) == ("train", 1)]
        for result in (parts, whole)
    )
    assert [(entry.bucket, entry.buckets) for entry in before] == [(bucket, 1) for bucket in range(7)]
    assert [(entry.bucket, entry.buckets) for entry in after] == [(0, 3), (3, 3), (6, 1)]

    def rows(result, entries):
        files = [result.folder / "instances" / "64" / entry.file for entry in entries]
        return pa.concat_tables([pa.ipc.open_file(file).read_all() for file in files])

    assert rows(whole, after).equals(rows(parts, before))
    assert whole.manifests[64].statistics == parts.manifests[64].statistics
    assert not verify(whole.folder / "instances" / "64", Executor(), use_text=True).problems


@pytest.mark.parametrize("tasks", [1, 9, 17, 30])
def test_build_stopped_anywhere_continues_to_the_same_bytes(built, make_config, tmp_path, tasks):
    with pytest.raises(KeyboardInterrupt):
        build(make_config(), tmp_path / "out", Stopping(tasks))
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert not list((tmp_path / "out").rglob("*.tmp"))
    build(make_config(), tmp_path / "out", Executor())
    assert hashes(tmp_path / "out") == hashes(built.folder)


def test_killed_build_leaves_no_worker_and_continues_to_the_same_bytes(built, make_config, tmp_path):
    config, output = make_config(), tmp_path / "out"
    flags = "--vocab-size 2000 --lengths 64 128 --dupe-factor 2 --validation-share 0.1 --workers 2"
    command = [sys.executable, "-m", "data_prep", "build", "--input", config.sources[0].input, *flags.split()]
    process = subprocess.Popen([*command, "--output", str(output)], stderr=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + 180
    try:
        while not list((output / "work" / "records").rglob("*.jsonl")):
            assert process.poll() is None, "the build has failed"
            assert time.monotonic() < deadline, "no unit was finished in three minutes"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    (output / "work" / ".rest.arrow.89abcdef.tmp").write_text("left by the killed build")
    build(config, output, Executor())  # the lock is free: it went with its holder
    assert not list(output.rglob("*.tmp"))
    assert hashes(output) == hashes(built.folder)


def test_finished_build_is_left_as_it_is(own_copy, make_config, capsys):
    before = {path: path.stat().st_mtime_ns for path in own_copy.rglob("*.arrow")}
    build(make_config(), own_copy, Executor())
    assert {path: path.stat().st_mtime_ns for path in own_copy.rglob("*.arrow")} == before
    assert "done before" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["instances/64/train-00001-01.arrow", "documents/train-00001.arrow"])
def test_damaged_file_is_made_anew(built, own_copy, make_config, part):
    (own_copy / part).write_bytes(b"damaged")
    build(make_config(), own_copy, Executor())
    assert hashes(own_copy) == hashes(built.folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"name": "train-00001-00"',
        b'{"name": "train-00001-00", "files": {}}\n',
        b'{"name": "train-00001-00", "files": [], "counts": {}}\n',
        b'{"name": "train-00001-00", "files": {}, "counts": {"rows": "9"}}\n',
        b'{"name": "train-00001-00", "files": {}, "counts": {"rows": 1e99}}\n',
        b'{"name": "train-00001-00\n\0\0\xff\n',
    ],
)
def test_unit_with_a_damaged_record_is_done_again(built, own_copy, make_config, content):
    records = own_copy / "work" / "records" / "instances-64.jsonl"
    before = records.read_bytes().splitlines(keepends=True)
    (line,) = (line for line in before if b"train-00001-00" in line)
    records.write_bytes(b"".join(content if other == line else other for other in before))
    build(make_config(), own_copy, Executor())
    lines = [text for text in records.read_bytes().splitlines() if text.startswith(line[:24])]
    again, before = (json.loads(text) for text in (lines[-1], line))
    for record in (again, before):
        for file in record["files"].values():
            file[1] = "when the file was written"
    assert again == before
    assert hashes(own_copy) == hashes(built.folder)


def test_unit_that_was_recorded_twice_is_counted_once(own_copy, make_config):
    """A shard that was deleted is written again, and recorded again."""
    manifest = own_copy / "instances" / "64" / "manifest.json"
    before = manifest.read_bytes()
    for _ in range(2):
        (own_copy / "instances" / "64" / "train-00001-00.arrow").unlink()
        manifest.unlink()
        build(make_config(), own_copy, Executor())
        assert manifest.read_bytes() == before


def test_records_of_an_earlier_version_are_taken_over(built, own_copy, make_config, capsys):
    """Earlier versions wrote a file for each unit, with the hashes of its files and no time."""
    for records in (own_copy / "work" / "records").glob("*.jsonl"):
        folder = records.with_suffix("")
        folder.mkdir()
        for line in filter(str.strip, records.read_text().splitlines()):
            content = json.loads(line)
            files = {name: file[2] for name, file in content["files"].items()}
            record = {"files": files, "counts": content["counts"]}
            (folder / f"{content['name']}.json").write_text(json.dumps(record))
        records.unlink()
    (own_copy / "instances" / "64" / "train-00001-00.arrow").write_bytes(b"damaged")
    before = {path: path.stat().st_mtime_ns for path in own_copy.rglob("*.arrow")}
    build(make_config(), own_copy, Executor())
    changed = [path.name for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert changed == ["train-00001-00.arrow"]
    assert hashes(own_copy) == hashes(built.folder)
    assert not [path for path in (own_copy / "work" / "records").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("work/plan.json", "{"),
        ("work/plan.json", '{"buckets": 4}'),
        ("work/plan.json", '{"buckets": {"train": 99999999999}, "corpus": {}, "report": [], "vocab_size": 800}'),
        ("work/plan.json", '{"buckets": {"train": 1}, "corpus": {}, "report": [], "vocab_size": 800}'),
        ("build.json", "["),
        ("build.json", "{}"),
    ],
)
def test_damaged_state_of_a_build_is_named_with_the_remedy(own_copy, make_config, name, content):
    (own_copy / name).write_text(content)
    with pytest.raises(DataError, match=rf"{name}: (its statistics are )?damaged or edited \(.*\)\. Delete"):
        build(make_config(), own_copy, Executor())


def test_other_configuration_is_refused_with_the_difference(own_copy, make_config):
    with pytest.raises(ConfigError, match=r"(?s)seed: 12345 there, 1 now.*new folder"):
        build(make_config(seed=1), own_copy, Executor())


def test_changed_input_is_refused(make_config, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    config = make_config(sources=(SourceConfig(input=str(path)),), lengths=(64,), dupe_factor=1, vocab_size=800)
    build(config, tmp_path / "out", Executor())
    path.touch()
    build(config, tmp_path / "out", Executor())  # the same text at another time is fine
    write_jsonl(path, texts[:39])
    with pytest.raises(DataError, match=r"other input .*in\.jsonl changed"):
        build(config, tmp_path / "out", Executor())


def test_foreign_folder_is_refused(make_config, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds other files \(precious\.txt\)"):
        build(make_config(), tmp_path, Executor())
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_second_build_in_a_folder_is_refused(make_config, tmp_path):
    class Nested(Executor):
        def run(self, function, tasks):
            with pytest.raises(DataError, match=r"another build is at work here \(host .*, process \d+\)"):
                build(make_config(), tmp_path / "out", Executor())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(make_config(), tmp_path / "out", Nested())


def test_file_system_without_locks_is_told_and_used(make_config, tmp_path, monkeypatch, capsys):
    def flock(descriptor, mode):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(KeyboardInterrupt):
        build(make_config(), tmp_path / "out", Stopping(0))
    assert "has no locks; do not start a second build here" in capsys.readouterr().err


def test_documents_are_counted_per_source(make_config, texts, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", texts[:30])
    (tmp_path / "b.txt").write_text("\n\n".join(text.replace("\n\n", "\n") for text in texts[30:45]), encoding="utf-8")
    (tmp_path / "c.txt").write_text("\n\n".join(text.replace("\n\n", "\n") for text in texts[45:52]), encoding="utf-8")
    sources = (
        SourceConfig(input=str(tmp_path / "a.jsonl"), name="lines"),
        SourceConfig(input=str(tmp_path / "*.txt"), name="plain"),
    )
    result = build(
        make_config(sources=sources, lengths=(64,), dupe_factor=1, vocab_size=1000), tmp_path / "out", Executor()
    )
    corpus = result.manifests[64].statistics["corpus"]
    assert corpus["documents_by_source"] == {"lines": 30, "plain": 22}
    assert corpus["documents"] == 52


def test_order_of_input_does_not_matter(built, make_config, texts, tmp_path):
    """Documents are ordered by the hash of their text, so only the vocabulary could tell; it is given here."""
    folders = []
    for name, part in (("in", texts), ("reversed", texts[::-1])):
        path = write_jsonl(tmp_path / f"{name}.jsonl", part)
        config = make_config(sources=(SourceConfig(input=str(path)),), tokenizer=str(built.folder / "tokenizer"))
        folders.append(build(config, tmp_path / name, Executor()).folder)
    first, second = (hashes(folder) for folder in folders)
    assert {k: v for k, v in first.items() if k.endswith(".arrow")} == {
        k: v for k, v in second.items() if k.endswith(".arrow")
    }


@pytest.mark.parametrize("pieces", ["wordpiece", "byte_bpe"])
def test_vocabulary_of_a_sample_does_not_depend_on_the_order_of_input(
    make_config, texts, tmp_path, monkeypatch, pieces
):
    monkeypatch.setattr(step2_vocabulary, "TRAINING_CHARACTERS", sum(map(len, texts)) // 2)
    inputs = [SourceConfig(input=str(write_jsonl(tmp_path / f"{i}.jsonl", texts[i::2]))) for i in (0, 1)]
    tokenizers = []
    for order in (1, -1):
        config = make_config(sources=tuple(inputs[::order]), pieces=pieces, lengths=(64,), dupe_factor=1)
        built = build(config, tmp_path / str(order), Executor())
        assert re.search(r"trained on .* a sample of 5\d\.\d\d% by a hash", "\n".join(built.vocabulary_report))
        folder = built.folder
        assert not (folder / "work" / "words").exists()
        tokenizers.append(sha256_file(folder / "tokenizer" / "tokenizer.json"))
    assert tokenizers[0] == tokenizers[1]
    monkeypatch.undo()
    whole = build(config, tmp_path / "whole", Executor()).folder
    assert sha256_file(whole / "tokenizer" / "tokenizer.json") != tokenizers[0]


@pytest.mark.parametrize("order", [1, -1])
def test_vocabulary_of_too_many_words_is_that_of_half_the_sample(make_config, texts, tmp_path, monkeypatch, order):
    """Memory holds a bounded number of different words, and which documents they come from is told by hashes alone."""
    path = write_jsonl(tmp_path / "in.jsonl", texts[::order])
    config = make_config(sources=(SourceConfig(input=str(path)),), lengths=(64,), dupe_factor=1)
    words = {word for text in texts for word in text.split()}
    monkeypatch.setattr(step2_vocabulary, "TRAINING_WORDS", 0.4 * len(words))
    report = build(config, tmp_path / "out", Executor()).vocabulary_report
    assert any(re.search(r"sample of (50|25|12\.5)\.?0* ?%", line) for line in report), report
    monkeypatch.setattr(step2_vocabulary, "TRAINING_WORDS", 1)  # less than any document has
    build(config, tmp_path / "few", Executor())


def test_sources_of_one_name_are_counted_together(make_config, texts, tmp_path):
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", texts[i::3]) for i in range(3)]
    sources = tuple(SourceConfig(input=str(path), name=name) for path, name in zip(paths, "aab", strict=True))
    built = build(make_config(sources=sources, lengths=(64,), dupe_factor=1), tmp_path / "out", Executor())
    corpus = built.manifests[64].statistics["corpus"]
    assert corpus["documents_by_source"] == {"a": len(texts[::3]) + len(texts[1::3]), "b": len(texts[2::3])}
    with pytest.raises(ValueError, match=r"sources\.1: input='.*0\.jsonl' is that of sources\.0 already"):
        make_config(sources=(sources[0], sources[0]))


def test_copies_of_a_document_fall_into_one_split_and_differ(make_config, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:20] * 3)
    config = make_config(sources=(SourceConfig(input=str(path)),), lengths=(64,), dupe_factor=1, vocab_size=800)
    folder = build(config, tmp_path / "out", Executor()).folder
    documents = DocumentSet.open(folder / "documents", "train")
    keys = [key for bucket in range(len(documents.bucket_starts) - 1) for key in documents.document_keys(bucket)]
    assert len(keys) % 3 == 0
    assert len(set(keys)) == len(keys)


def test_held_out_documents_stay_when_others_are_added(built, make_config, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [*texts, "Another one. It is short.", "And one more. It is too."])
    config = make_config(sources=(SourceConfig(input=str(path)),), tokenizer=str(built.folder / "tokenizer"), seed=9)
    folder = build(config, tmp_path / "out", Executor()).folder
    before, after = (
        DocumentSet.open(place / "documents", "validation").document_keys(0).tolist()
        for place in (built.folder, folder)
    )
    assert set(before) <= set(after)


def test_manifest_tells_what_was_built(built, make_config):
    manifest = read_manifest(built.folder / "instances" / "128")
    assert manifest.config == json.loads(json.dumps(to_dict(make_config())))
    assert set(manifest.versions) == {"megabert", "numpy", "pyarrow", "sentencex", "tokenizers"}
    assert {entry.duplicate for entry in manifest.of_split("train")} == {0, 1}
    assert {entry.duplicate for entry in manifest.of_split("validation")} == {0}
    assert manifest.metadata.max_predictions_per_seq == 20
    counts = manifest.statistics["instances"]["train"]
    assert counts["rows"] == manifest.totals()["train"]["rows"]
    masked = counts["masked_tokens"]
    assert abs(counts["shown_as_mask"] / masked - 0.8) < 3 * (0.8 * 0.2 / masked) ** 0.5
    assert abs(counts["shown_as_original"] / masked - 0.1) < 3 * (0.1 * 0.9 / masked) ** 0.5


def test_shards_are_read_by_datasets_schema(built):
    """What `datasets.load_dataset("arrow")` does: open the stream or file, keep the columns."""
    shard = next((built.folder / "instances" / "64").glob("train-*.arrow"))
    with pa.ipc.open_file(shard) as reader:
        assert reader.schema.names == [
            "input_ids", "segment_b_start", "masked_lm_positions", "masked_lm_ids", "next_sentence_label",
        ]  # fmt: skip
        assert all(reader.get_batch(i).num_rows <= 8192 for i in range(reader.num_record_batches))


def read_shard(path):
    """Return a shard's rows, whether they are stored compressed, and the rows of its first record batch."""
    with pa.memory_map(str(path)) as source:
        content = source.read_buffer()
        reader = pa.ipc.open_file(content)
        batch, table = reader.get_batch(0), reader.read_all()
        is_view = 0 <= batch["input_ids"].values.buffers()[1].address - content.address < content.size
        return table.to_pylist(), not is_view, len(batch)


def test_shards_are_stored_for_reading_single_rows(built):
    for length in (64, 128):
        for path in (built.folder / "instances" / str(length)).glob("*.arrow"):
            rows, is_compressed, batch_rows = read_shard(path)
            assert not is_compressed
            assert batch_rows == min(len(rows), 32_768 // length)
            lists = ("input_ids", "masked_lm_positions")
            assert np.load(lengths_path(path)).tolist() == [[len(row[name]) for name in lists] for row in rows]


@pytest.mark.parametrize("sizes", [[5], [4, 4], [1, 1, 1], [3, 9, 2, 0, 4, 1], [8, 1], [0, 3]])
def test_rows_of_several_buckets_make_even_record_batches(sizes):
    numbers = iter(range(100))
    schema = pa.schema([("ids", pa.list_(pa.int64()))])
    parts = [pa.record_batch({"ids": [[next(numbers)] for _ in range(size)]}, schema=schema) for size in sizes]
    lengths = [len(batch) for batch in step6_instances._evenly(iter(parts), 4)]
    assert lengths == [4] * (sum(sizes) // 4) + [sum(sizes) % 4] * (sum(sizes) % 4 > 0)
    rows = [row for batch in step6_instances._evenly(iter(parts), 4) for row in batch["ids"].to_pylist()]
    assert rows == [[number] for number in range(sum(sizes))]


def test_build_that_an_earlier_version_began_is_finished_in_its_form(built, own_copy, make_config):
    folder = own_copy / "instances" / "64"
    for path in folder.glob("*.arrow"):
        with pa.ipc.open_file(path.read_bytes()) as reader:
            table = reader.read_all()
        with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table.slice(0, 5))
    build(make_config(), own_copy, Executor())
    for path in folder.glob("*.arrow"):
        rows, is_compressed, batch_rows = read_shard(path)
        assert is_compressed
        assert batch_rows == len(rows)
        assert rows == read_shard(built.folder / "instances" / "64" / path.name)[0]


def test_finished_build_keeps_its_manifests_whatever_is_installed(own_copy, make_config, monkeypatch):
    monkeypatch.setattr(build_state, "installed_version", lambda name: "99")
    paths = sorted(own_copy.glob("instances/*/*.json"))
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    tokenizers = {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")}
    build(make_config(), own_copy, Executor())
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert {path: path.stat().st_ino for path in own_copy.rglob("tokenizer*")} == tokenizers


def test_other_versions_are_refused_where_units_are_left(own_copy, make_config, monkeypatch):
    (own_copy / "instances" / "64" / "train-00000-00.arrow").unlink()
    installed = build_state.installed_versions()
    recorded = installed["sentencex"]
    monkeypatch.setattr(build_state, "installed_version", lambda name: {**installed, "sentencex": "99"}[name])
    with pytest.raises(DataError, match=rf"sentencex {recorded} \(now 99\).*pip install sentencex=={recorded}\)"):
        build(make_config(), own_copy, Executor())


def test_state_file_cut_off_by_a_kill_is_no_foreign_file(make_config, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".build.json.0123abcd.tmp").write_text("{")
    with pytest.raises(KeyboardInterrupt):
        build(make_config(), tmp_path / "out", Stopping(0))
    assert not list((tmp_path / "out").glob(".*.tmp"))


def test_changed_remote_input_is_refused(make_config, tokenizer_folder, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    source = SourceConfig(input=f"file://{path}")
    config = make_config(sources=(source,), lengths=(64,), dupe_factor=1, tokenizer=str(tokenizer_folder))
    build(config, tmp_path / "out", Executor())
    path.write_text(path.read_text().replace("the", "The"))  # as long as before
    with pytest.raises(DataError, match=r"other input .*in\.jsonl changed"):
        build(config, tmp_path / "out", Executor())


def test_shards_of_an_earlier_revision_are_kept_but_not_continued(make_config, tmp_path, monkeypatch):
    """An earlier version drew random next sentences in another way: its shards are read, and never mixed with ours."""
    with monkeypatch.context() as earlier:
        earlier.setattr(ShardMetadata, "latest_revision", 1)
        folder = build(make_config(), tmp_path / "out", Executor()).folder
    shards = folder / "instances" / "64"
    before = hashes(folder)
    assert "revision" not in (shards / "manifest.json").read_text()
    # Finished: the same command finds nothing to do, and the shards are checked as ever, but for their text.
    assert build(make_config(), folder, Executor()).manifests[64].metadata.revision == 1
    assert hashes(folder) == before
    assert verify(shards, Executor()).problems == []
    with pytest.raises(DataError, match=r"64: its pairs are of revision 1: .* Verify without --text"):
        verify(shards, Executor(), use_text=True)
    # Unfinished: refused, with what can be done.
    (shards / "train-00001-00.arrow").unlink()
    with pytest.raises(DataError, match=r"train-00001-00.arrow: .* or give --output a new folder"):
        build(make_config(), folder, Executor())


def test_new_draws_are_noted_where_they_differ(make_config, tokenizer_folder, tmp_path):
    for changes, revision in (
        ({}, 3),
        ({"pairing": "google"}, 3),
        ({"objective": "sop"}, 1),
        ({"objective": "sop", "mask_unit": "span"}, 2),
    ):
        config = make_config(tokenizer=str(tokenizer_folder), lengths=(64,), dupe_factor=1, **changes)
        manifest = build(config, tmp_path / str(len(str(changes))), Executor()).manifests[64]
        assert manifest.metadata.revision == revision
        assert instance_schema(manifest.metadata).metadata.get(b"megabert.revision", b"1") == str(revision).encode()
