"""A build gives the same bytes and splits, whatever the workers, the chunks, and the order of its input."""

import re

import pytest
from support.soak import in_soak
from unit.data_prep.builds import hashes
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.documents.document_set import DocumentSet
from data_prep.execution.executors import Executor, ProcessExecutor
from data_prep.extract import inputs
from data_prep.pipeline import build_shards
from data_prep.steps import step2_vocabulary, step5_documents
from megabert.foundation.files import sha256_file


def test_workers_give_the_same_bytes(built, make_config, tmp_path):
    build_shards(make_config(), tmp_path / "out", ProcessExecutor(3))
    assert hashes(tmp_path / "out") == hashes(built.folder)


def test_chunks_merged_by_range_of_hashes_give_the_same_bytes(built, make_config, tmp_path, monkeypatch, capsys):
    """What terabytes take, with few chunks: two to a merged file, in several levels."""
    monkeypatch.setattr(step5_documents, "MAX_FILES", 2)
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1000)
    build_shards(make_config(chunk_mib=0.02), tmp_path / "out", Executor())
    assert len(re.findall(r"^chunks: (\d+)/\1 units", capsys.readouterr().err, re.MULTILINE)) >= 3
    assert not (tmp_path / "out" / "work" / "chunks").exists()
    before, after = (
        {name: digest for name, digest in hashes(folder).items() if name.endswith(".arrow")}
        for folder in (built.folder, tmp_path / "out")
    )
    assert after == before


def test_order_of_input_does_not_matter(built, make_config, texts, tmp_path):
    """Documents are ordered by the hash of their text, so only the vocabulary could differ; it is given here."""
    folders = []
    for name, part in (("in", texts), ("reversed", texts[::-1])):
        path = write_jsonl(tmp_path / f"{name}.jsonl", part)
        config = make_config(sources=(SourceConfig(input=str(path)),), tokenizer=str(built.folder / "tokenizer"))
        folders.append(build_shards(config, tmp_path / name, Executor()).folder)
    first, second = (hashes(folder) for folder in folders)
    assert {k: v for k, v in first.items() if k.endswith(".arrow")} == {
        k: v for k, v in second.items() if k.endswith(".arrow")
    }


@pytest.mark.parametrize("pieces", ["wordpiece", *in_soak("unigram")])
def test_vocabulary_of_a_sample_does_not_depend_on_the_order_of_input(
    make_config, texts, tmp_path, monkeypatch, pieces
):
    monkeypatch.setattr(step2_vocabulary, "TRAINING_CHARACTERS", sum(map(len, texts)) // 2)
    inputs = [SourceConfig(input=str(write_jsonl(tmp_path / f"{i}.jsonl", texts[i::2]))) for i in (0, 1)]
    tokenizers = []
    for order in (1, -1):
        config = make_config(sources=tuple(inputs[::order]), pieces=pieces, lengths=(64,), dupe_factor=1)
        built = build_shards(config, tmp_path / str(order), Executor())
        assert re.search(r"trained on .* a sample of 5\d\.\d\d% by a hash", "\n".join(built.vocabulary_report))
        folder = built.folder
        assert not (folder / "work" / "words").exists()
        tokenizers.append(sha256_file(folder / "tokenizer" / "tokenizer.json"))
    assert tokenizers[0] == tokenizers[1]
    monkeypatch.undo()
    whole = build_shards(config, tmp_path / "whole", Executor()).folder
    assert sha256_file(whole / "tokenizer" / "tokenizer.json") != tokenizers[0]


def test_vocabulary_of_too_many_words_is_that_of_half_the_sample(make_config, texts, tmp_path, monkeypatch):
    """Memory holds a bounded number of different words, and which documents they come from is told by hashes alone."""
    path = write_jsonl(tmp_path / "in.jsonl", texts)
    config = make_config(sources=(SourceConfig(input=str(path)),), lengths=(64,), dupe_factor=1)
    words = {word for text in texts for word in text.split()}
    monkeypatch.setattr(step2_vocabulary, "TRAINING_WORDS", 0.4 * len(words))
    report = build_shards(config, tmp_path / "out", Executor()).vocabulary_report
    assert any(re.search(r"sample of (50|25|12\.5)\.?0* ?%", line) for line in report), report
    monkeypatch.setattr(step2_vocabulary, "TRAINING_WORDS", 1)  # less than any document has
    build_shards(config, tmp_path / "few", Executor())


def test_copies_of_a_document_fall_into_one_split_and_differ(make_config, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:20] * 3)
    config = make_config(sources=(SourceConfig(input=str(path)),), lengths=(64,), dupe_factor=1, vocab_size=800)
    folder = build_shards(config, tmp_path / "out", Executor()).folder
    documents = DocumentSet.open(folder / "documents", "train", 2000)
    keys = [key for bucket in range(len(documents.bucket_starts) - 1) for key in documents.document_keys(bucket)]
    assert len(keys) % 3 == 0
    assert len(set(keys)) == len(keys)


def test_held_out_documents_stay_when_others_are_added(built, make_config, texts, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [*texts, "Another one. It is short.", "And one more. It is too."])
    config = make_config(sources=(SourceConfig(input=str(path)),), tokenizer=str(built.folder / "tokenizer"), seed=9)
    folder = build_shards(config, tmp_path / "out", Executor()).folder
    before, after = (
        DocumentSet.open(place / "documents", "validation", 2000).document_keys(0).tolist()
        for place in (built.folder, folder)
    )
    assert set(before) <= set(after)
