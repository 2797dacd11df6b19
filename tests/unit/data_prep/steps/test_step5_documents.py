from itertools import pairwise

import numpy as np
from unit.data_prep.conftest import WholeSplit

from data_prep.config.build import SourceConfig
from data_prep.documents.arrow_files import gather, offsets_of
from data_prep.documents.document_set import DocumentSet, TokenizedDocuments, tokenizer_of
from data_prep.steps import step5_documents
from data_prep.steps.step5_documents import count_buckets


def copied(documents, starts, lengths):
    places = offsets_of(lengths)
    target = np.zeros(places[-1], np.uint16)
    documents.copy_tokens(starts, lengths, target, places)
    return target


def test_documents_are_those_of_the_corpus(built, texts):
    """Every document of the corpus is in one split, its tokens in order."""
    tokenizer = tokenizer_of(built.folder / "tokenizer")
    expected = {tuple(tokenizer.encode(text).tolist()) for text in texts}
    found = []
    for split in ("train", "validation"):
        documents = DocumentSet.open(built.folder / "documents", split, 2000)
        starts = WholeSplit.of(documents).tokens_of_documents
        flat = copied(documents, starts[:-1], np.diff(starts))
        found += [tuple(flat[a:b].tolist()) for a, b in pairwise(starts)]
    assert len(found) == len(texts)
    assert set(found) == expected


def test_large_weights_need_more_buckets(make_config):
    """A worker has a bucket in memory after weights: documents that are used 60 times fill it 60 times as far."""

    def buckets(*weights):
        sources = tuple(SourceConfig(input=str(index), weight=weight) for index, weight in enumerate(weights))
        by_source = {str(index): 4_000_000 for index in range(len(weights))}
        tokens = sum(by_source.values())
        counts = {"documents": [9000, 0], "tokens": tokens, "tokens_by_source": by_source}
        return count_buckets(make_config(sources=sources), counts)["train"]

    assert buckets(1, 1) == buckets(2, 4) == 4  # as before: nothing changes for usual weights
    assert buckets(60, 1) == 25


def test_copies_of_one_document_are_no_more_than_a_worker_holds(make_config, monkeypatch, tmp_path):
    """Copies of a text are all in one bucket, however many buckets there are."""
    monkeypatch.setattr(step5_documents, "MAX_BUCKET_TOKENS", 100)
    config = make_config(sources=(SourceConfig(input="a", weight=60), SourceConfig(input="b")))
    task = step5_documents.BucketTask(None, "train", 0, 1, 2000, tmp_path / "a.arrow", config)
    lengths = np.array([1, 30, 200, 200])
    kind = {"hashes_D": np.arange(4, dtype=np.uint64), "splits_D": np.zeros(4, np.uint8)}
    sources = np.array([0, 0, 0, 1], np.uint16)
    documents = TokenizedDocuments(
        **kind,
        sources_D=sources,
        ids_T=np.zeros(431, np.uint16),
        sentence_lengths_S=lengths,
        sentence_offsets=np.arange(5),
    )
    order, counts = step5_documents._choose(task, documents)
    assert np.bincount(order).tolist() == [60, 3, 1, 1]
    assert counts["copies_left_out"] == 57 + 59


def test_tokens_of_any_bucket_are_copied(built):
    documents = DocumentSet.open(built.folder / "documents", "train", 2000)
    flat = np.concatenate([documents.read(b).ids_T for b in range(len(documents.bucket_starts) - 1)])
    rng = np.random.default_rng(0)
    tokens = WholeSplit.of(documents).tokens_of_sentences
    sentences = rng.integers(0, len(tokens) - 1, 500)
    starts, lengths = tokens[sentences], np.diff(tokens)[sentences]
    lengths[::7] = 0
    assert np.array_equal(copied(documents, starts, lengths), gather(flat, starts, lengths))


def test_index_agrees_with_buckets(built):
    documents = DocumentSet.open(built.folder / "documents", "train", 2000)
    whole = WholeSplit.of(documents)
    sizes = [len(whole.sentences_of_documents) - 1, len(whole.tokens_of_sentences) - 1, whole.tokens_of_sentences[-1]]
    assert documents.bucket_starts[-1].tolist() == sizes
    sentence = np.arange(sizes[1])
    owner = documents.document_of_token(whole.tokens_of_sentences[:-1])
    assert (whole.sentences_of_documents[owner] <= sentence).all()
    assert (sentence < whole.sentences_of_documents[owner + 1]).all()


def test_pieces_are_gathered_end_to_end():
    values = np.arange(100, 120)
    assert gather(values, np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [105, 106, 109, 110, 111]
    assert gather(values, np.array([], int), np.array([], int)).tolist() == []
