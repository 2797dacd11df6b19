"""A build gives the same bytes and splits, whatever the workers, the chunks, and the order of its input."""

import re

import pytest
from support.soak import in_soak
from unit.data_prep.builds import hashes
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.documents.document_set import DocumentSet
from data_prep.execution.executors import ProcessExecutor
from data_prep.extract import inputs
from data_prep.steps import step2_vocabulary, step5_documents
from megabert.foundation.files import sha256_file


def shards_and_documents(folder):
    return {name: digest for name, digest in hashes(folder).items() if name.endswith(".arrow")}


def test_workers_give_the_same_bytes(built, build):
    assert hashes(build(executor=ProcessExecutor(3)).folder) == hashes(built.folder)


def test_chunks_merged_by_range_of_hashes_give_the_same_bytes(built, build, monkeypatch, capsys):
    """What terabytes take, with few chunks: two to a merged file, in several levels."""
    monkeypatch.setattr(step5_documents, "MAX_FILES", 2)
    monkeypatch.setattr(inputs, "MIN_CHUNK_BYTES", 1000)
    folder = build(chunk_mib=0.02).folder
    assert len(re.findall(r"^chunks: (\d+)/\1 units", capsys.readouterr().err, re.MULTILINE)) >= 3
    assert not (folder / "work" / "chunks").exists()
    assert shards_and_documents(folder) == shards_and_documents(built.folder)


@pytest.mark.parametrize("pieces", ["wordpiece", *in_soak("unigram")])
def test_vocabulary_of_a_sample_does_not_depend_on_the_order_of_input(build, texts, tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(step2_vocabulary, "TRAINING_CHARACTERS", sum(map(len, texts)) // 2)
    inputs = [SourceConfig(input=str(write_jsonl(tmp_path / f"{i}.jsonl", texts[i::2]))) for i in (0, 1)]
    tokenizers = []
    for order in (1, -1):
        own = {"sources": tuple(inputs[::order]), "pieces": pieces, "lengths": (64,), "dupe_factor": 1}
        built = build(str(order), **own)
        assert re.search(r"trained on .* a sample of 5\d\.\d\d% by a hash", "\n".join(built.vocabulary_report))
        folder = built.folder
        assert not (folder / "work" / "words").exists()
        tokenizers.append(sha256_file(folder / "tokenizer" / "tokenizer.json"))
    assert tokenizers[0] == tokenizers[1]
    monkeypatch.undo()
    whole = build("whole", **own).folder
    assert sha256_file(whole / "tokenizer" / "tokenizer.json") != tokenizers[0]


def test_vocabulary_of_too_many_words_is_that_of_half_the_sample(build, texts, monkeypatch):
    """Memory holds a bounded number of different words, and which documents they come from is told by hashes alone."""
    words = {word for text in texts for word in text.split()}
    monkeypatch.setattr(step2_vocabulary, "TRAINING_WORDS", 0.4 * len(words))
    report = build(lengths=(64,), dupe_factor=1).vocabulary_report
    assert any(re.search(r"sample of (50|25|12\.5)\.?0* ?%", line) for line in report), report
    monkeypatch.setattr(step2_vocabulary, "TRAINING_WORDS", 1)  # less than any document has
    build("few", lengths=(64,), dupe_factor=1)


def test_copies_of_a_document_fall_into_one_split_and_differ(build, texts):
    folder = build(texts=texts[:20] * 3, lengths=(64,), dupe_factor=1, vocab_size=800).folder
    documents = DocumentSet.open(folder / "documents", "train", 2000)
    keys = [key for bucket in range(len(documents.bucket_starts) - 1) for key in documents.document_keys(bucket)]
    assert len(keys) % 3 == 0
    assert len(set(keys)) == len(keys)
