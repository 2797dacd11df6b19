"""Builds from ids: sound shards of all kinds, and the same bytes however they were made."""

import json

import numpy as np
import pyarrow as pa
import pytest
from unit.data_prep.builds import Stopping, hashes

from data_prep.checks.verify import verify
from data_prep.config.build import BuildConfig
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards
from data_prep.planning.text_sample import sample_text
from data_prep.vocabulary import symbols as vocabulary_symbols
from megabert.foundation.errors import DataError
from megabert.settings.config.loading import merge_layers

SIZE = {"vocab_size": 69, "special_ids": [0, 1, 2, 3, 4]}


@pytest.fixture(scope="module")
def lists():
    generator = np.random.default_rng(5)
    return [generator.integers(5, 69, size).tolist() for size in generator.integers(20, 300, 60)]


@pytest.fixture
def make(lists, tmp_path):
    """Return a configuration of single lists, or of their halves as pairs if an objective is given."""
    lines = [{"input_ids": ids, "a": ids[: len(ids) // 2], "b": ids[len(ids) // 2 :]} for ids in lists]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def make(**changes):
        pair = {"field": "a", "second_field": "b"} if changes.get("objective", "none") != "none" else {}
        values = {"objective": "none", "lengths": [32], "dupe_factor": 2, "validation_share": 0.1, **SIZE, **changes}
        source = {"input": str(tmp_path / "a.jsonl"), "format": "ids", **pair}
        return merge_layers(BuildConfig, {"sources": [source], **values})

    return make


def rows_of(folder):
    """Return the rows of a length's training shards."""
    tables = [pa.ipc.open_file(path).read_all() for path in sorted(folder.glob("train-*.arrow"))]
    return pa.concat_tables(tables).to_pylist()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"masking": "dynamic"},
        {"mask_unit": "span", "masked_lm_prob": 0.3},
        {"objective": "nsp"},
        {"objective": "sop", "mask_unit": "span"},
        {"objective": "nsp", "pairing": "google"},
        {"min_tokens": [100], "clean": {"rules": ["duplicate_documents"]}},
    ],
)
def test_shards_are_sound(make, tmp_path, changes):
    build_shards(make(**changes), tmp_path / "out", Executor())
    assert verify(tmp_path / "out" / "instances" / "32", Executor(), use_text=True).problems == []


def test_a_build_makes_the_table_of_numbers_once(make, tmp_path, monkeypatch):
    made, original = [], vocabulary_symbols.word_level_tokenizer
    monkeypatch.setattr(vocabulary_symbols, "word_level_tokenizer", lambda *a, **k: made.append(1) or original(*a, **k))
    build_shards(make(vocab_size=71), tmp_path / "out", Executor())
    assert len(made) == 1


def test_another_content_of_the_table_is_another_input(make, tmp_path):
    table, symbols = tmp_path / "symbols.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(5, 69))]
    table.write_text("\n".join(symbols))
    config = make(symbols=str(table), special_ids=None)
    build_shards(config, tmp_path / "out", Executor())
    table.write_text("\n".join([*symbols[:5], *reversed(symbols[5:])]))
    with pytest.raises(DataError, match=r"was begun with other input \(.*symbols.txt changed"):
        build_shards(config, tmp_path / "out", Executor())


def test_every_id_is_in_each_pass_once(make, tmp_path, lists):
    result = build_shards(make(masking="dynamic", validation_share=0.0), tmp_path / "out", Executor())
    rows = rows_of(tmp_path / "out" / "instances" / "32")
    assert sum(len(row["input_ids"]) - 2 for row in rows) == 2 * sum(map(len, lists))
    contents = {tuple(ids) for ids in lists}
    full = next(row["input_ids"][1:-1] for row in rows if len(row["input_ids"]) == 32)
    assert any(full == list(ids[i : i + 30]) for ids in contents for i in range(len(ids)))
    assert result.vocabulary_report[0].endswith("69 ids; [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4")


def test_pairs_are_the_two_lists(make, tmp_path, lists):
    build_shards(
        make(objective="nsp", masking="dynamic", lengths=[512], short_seq_prob=0.0), tmp_path / "out", Executor()
    )
    rows = rows_of(tmp_path / "out" / "instances" / "512")
    true = {(tuple(ids[: len(ids) // 2]), tuple(ids[len(ids) // 2 :])) for ids in lists}
    cut = [(row["input_ids"], row["segment_b_start"], row["next_sentence_label"]) for row in rows]
    sides = [(tuple(ids[1 : start - 1]), tuple(ids[start:-1]), label) for ids, start, label in cut]
    assert all(((a, b) in true) == (label == 0) for a, b, label in sides)
    assert {label for *_, label in sides} == {0, 1}


def test_interrupted_builds_and_workers_give_the_same_bytes(make, tmp_path):
    config = make(chunk_mib=0.01)
    build_shards(config, tmp_path / "whole", Executor())
    for tasks in (1, 3, 7):
        with pytest.raises(KeyboardInterrupt):
            build_shards(config, tmp_path / "stopped", Stopping(tasks))
    build_shards(config, tmp_path / "stopped", Executor())
    assert hashes(tmp_path / "stopped") == hashes(tmp_path / "whole")
    # Another share splits the documents again, as those of text.
    build_shards(make(chunk_mib=0.01, validation_share=0.2), tmp_path / "stopped", Executor())
    build_shards(make(chunk_mib=0.01, validation_share=0.2), tmp_path / "new", Executor())
    assert hashes(tmp_path / "stopped") == hashes(tmp_path / "new")


def test_wrong_lists_are_counted_and_bounded(make, tmp_path):
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"input_ids": [5, 99]}\n{"input_ids": []}\n')
    with pytest.raises(DataError, match="line 61: 99 at index 1 is no id: allowed are 0 to 68"):
        build_shards(make(), tmp_path / "strict", Executor())
    result = build_shards(make(max_bad_share=0.1), tmp_path / "out", Executor())
    corpus = result.manifests[32].statistics["corpus"]
    assert corpus["dropped"]["bad_ids"] == 1
    assert corpus["dropped"]["documents_without_text"] == 1
    with pytest.raises(DataError, match="1 bad id of 62 documents cannot be read"):
        build_shards(make(max_bad_share=0.01), tmp_path / "bounded", Executor())


def test_copies_are_dropped_and_weights_counted(make, tmp_path, lists):
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(json.dumps({"input_ids": lists[0]}) + "\n")
    result = build_shards(make(clean={"rules": ["duplicate_documents"]}), tmp_path / "out", Executor())
    corpus = result.manifests[32].statistics["corpus"]
    assert corpus["dropped"]["duplicate_documents"] == 1
    assert corpus["tokens"] == sum(map(len, lists))


def test_samples_tell_the_size(make, tmp_path, lists):
    from data_prep.extract.inputs import find_files

    config = make()
    sample = sample_text(config, find_files(config.sources))
    assert sorted(sample.document_tokens) == sorted(map(len, lists))
    written = sum(len(json.dumps(ids)) for ids in lists)
    assert abs(sample.document_bytes.sum() - written) < 0.05 * written


def test_commands_read_builds_of_ids(make, tmp_path, lists, megabert_data):
    flags = ["--input", str(tmp_path / "a.jsonl"), "--format", "ids", "--vocab-size", "69", "--lengths", "32"]
    flags += ["--special-ids", *"01234", "--objective", "none", "--workers", "1", "--output", str(tmp_path / "out")]
    make()
    assert "of ids (" in megabert_data("build", *flags, "--dry-run").out
    megabert_data("build", *flags)
    megabert_data("verify", tmp_path / "out", "--text")
    megabert_data("stats", tmp_path / "out")
    printed = megabert_data("peek", f"{tmp_path}/out/instances/32/train-00000-00.arrow:0").out
    shown = printed.splitlines()[-1].removeprefix("text: [CLS] ").removesuffix(" [SEP]").split()
    assert any(list(map(int, shown)) == ids[i : i + len(shown)] for ids in lists for i in range(len(ids)))
