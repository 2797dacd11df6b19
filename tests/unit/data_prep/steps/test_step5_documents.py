from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from unit.data_prep.conftest import WholeSplit, begun_build, write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.documents.arrow_files import gather, make_list, offsets_of, write_batches
from data_prep.documents.document_set import DocumentSet, TokenizedDocuments, document_schema, hash_range, tokenizer_of
from data_prep.documents.token_files import TokenFile, TokenFiles, TokenReader, part_of
from data_prep.steps import step5_documents
from data_prep.steps.step3_tokens import NAME, SPLIT_AGAIN_NAME
from megabert.foundation.errors import DataError


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


@pytest.fixture
def corpus_of(build, tokenizer):
    """Return a function that builds shards and returns what their manifest says of the corpus."""
    own = {"lengths": (64,), "dupe_factor": 1, "validation_share": 0, "tokenizer": tokenizer}
    return lambda sources, name="out", **more: (
        build(name, sources=sources, **own, **more).manifests[64].statistics["corpus"]
    )


def test_duplicate_documents_are_kept_once_and_counted(corpus_of, texts, tmp_path):
    sources = []
    for name, part in (("a", texts[:20] + texts[:5]), ("b", texts[10:30])):
        path = write_jsonl(tmp_path / f"{name}.jsonl", part)
        sources.append(SourceConfig(input=str(path), name=name))
    corpus = corpus_of(tuple(sources), clean=CleanConfig(rules=("duplicate_documents",)))
    assert corpus["documents"] == 30
    assert corpus["dropped"]["duplicate_documents"] == 15
    assert corpus["documents_by_source"] == {"a": 25, "b": 20}
    assert corpus["kept_documents_by_source"] == {"a": 20, "b": 10}  # the first source keeps a shared one


def test_copies_differ_in_white_space_alone(corpus_of, texts, tmp_path):
    """No tokenizer sees it, so that a held-out copy would be in the training token for token."""
    copies = [text.replace(". ", ".  ").replace(", ", ",\u00a0").replace("\n", " \n ") for text in texts[:20]]
    path = write_jsonl(tmp_path / "in.jsonl", [*texts[:20], *copies])
    source = SourceConfig(input=str(path))
    assert corpus_of((source,), clean=CleanConfig(rules=("duplicate_documents",)))["documents"] == 20


def test_weights_repeat_and_thin_out_documents(corpus_of, texts, tmp_path):
    sources = []
    for name, part, weight in (("twice", texts[:20], 2.0), ("half", texts[20:60], 0.5)):
        path = write_jsonl(tmp_path / f"{name}.jsonl", part)
        sources.append(SourceConfig(input=str(path), name=name, weight=weight))
    corpus = corpus_of(tuple(sources))
    assert corpus["kept_documents_by_source"]["twice"] == 40
    assert 10 <= corpus["kept_documents_by_source"]["half"] <= 30
    once = corpus_of((SourceConfig(input=sources[0].input),), "once")["tokens"]
    assert corpus["tokens_by_source"]["twice"] == 2 * once
    assert sum(corpus["tokens_by_source"].values()) == corpus["tokens"] != corpus["tokens_read"]
    assert corpus["dropped"]["documents_without_weight"] == 40 - corpus["kept_documents_by_source"]["half"]


def test_large_weights_need_more_buckets(make_config):
    """A worker has a bucket in memory after weights: documents that are used 60 times fill it 60 times as far."""

    def buckets(*weights):
        sources = tuple(SourceConfig(input=str(index), weight=weight) for index, weight in enumerate(weights))
        by_source = {str(index): 4_000_000 for index in range(len(weights))}
        tokens = sum(by_source.values())
        counts = {"documents": [9000, 0], "tokens": tokens, "tokens_by_source": by_source}
        return step5_documents.count_buckets(make_config(sources=sources), counts)["train"]

    assert buckets(1, 1) == buckets(2, 4) == 4  # as before: nothing changes for usual weights
    assert buckets(60, 1) == 25


def test_copies_of_one_document_are_no_more_than_a_worker_holds(make_config, monkeypatch, tmp_path):
    """Copies of a text are all in one bucket, however many buckets there are."""
    monkeypatch.setattr(step5_documents, "MAX_BUCKET_TOKENS", 100)
    config = make_config(sources=(SourceConfig(input="a", weight=60), SourceConfig(input="b")))
    task = step5_documents.BucketTask(None, "train", 0, 1, tmp_path, tmp_path / "a.arrow", config)
    # The last two texts have copies in the corpus: four of one source, and two after the first of a weighted one.
    hashes, sources = np.array([0, 1, 2, 3, *[4] * 4, *[5] * 3], np.uint64), np.array([*[0] * 3, *[1] * 5, 0, 1, 1])
    lengths = np.array([1, 30, 200, 200, *[40] * 4, *[30] * 3])
    splits, ids = np.zeros(11, np.uint8), np.zeros(lengths.sum(), np.uint16)
    documents = TokenizedDocuments(hashes, splits, sources.astype(np.uint16), ids, lengths, np.arange(12))
    order, counts = step5_documents._choose(task, documents)
    assert np.bincount(order, minlength=11).tolist() == [60, 3, 1, 1, 1, 1, 0, 0, 3, 0, 0]
    assert counts["copies_left_out"] == 57 + 59 + 2 + 59
    order, _ = step5_documents._choose(replace(task, split="validation"), documents)
    assert np.bincount(order, minlength=11).max() == 1, "weights are of the training documents"


@pytest.mark.parametrize("names", ["abc", "cba", "bca"])
def test_copy_of_the_heaviest_source_stays_whatever_the_order(make_config, tmp_path, names):
    """Among equal weights it is the copy of the first source by name; in one source, the copy of most sentences."""
    sources = tuple(SourceConfig(input=name, name=name, weight=9 if name == "b" else 1) for name in names)
    config = make_config(sources=sources, clean=CleanConfig(rules=("duplicate_documents",)))
    task = step5_documents.BucketTask(None, "validation", 0, 1, tmp_path, tmp_path / "a.arrow", config)
    # Three texts: in all sources; in two of equal weight; twice in one, in other sentences.
    hashes, named = np.array([0, 0, 0, 1, 1, 2, 2], np.uint64), [*names, *(n for n in names if n != "b"), "a", "a"]
    lengths, offsets = np.full(8, 5), np.array([0, 1, 2, 3, 4, 5, 6, 8])
    numbers = np.array([names.index(name) for name in named], np.uint16)
    ids, splits = np.zeros(40, np.uint16), np.zeros(7, np.uint8)
    order, _ = step5_documents._choose(task, TokenizedDocuments(hashes, splits, numbers, ids, lengths, offsets))
    assert [named[row] for row in order] == ["b", "a", "a"]
    assert order[2] == 6


def test_lists_that_arrow_cannot_number_are_refused():
    with pytest.raises(DataError, match=r"2,147,483,648 tokens .* a file holds 2,147,483,647\. .* duplicate_documents"):
        make_list(np.zeros(0, np.uint16), np.array([0, 1 << 31]))


def test_tokens_of_any_bucket_are_copied(built):
    documents = DocumentSet.open(built.folder / "documents", "train", 2000)
    flat = np.concatenate([documents.read(b).ids_T for b in range(len(documents.bucket_starts) - 1)])
    rng = np.random.default_rng(0)
    tokens = WholeSplit.of(documents).tokens_of_sentences
    sentences = rng.integers(0, len(tokens) - 1, 500)
    starts, lengths = tokens[sentences], np.diff(tokens)[sentences]
    lengths[::7] = 0
    assert np.array_equal(copied(documents, starts, lengths), gather(flat, starts, lengths))


def test_pieces_are_gathered_end_to_end():
    values = np.arange(100, 120)
    assert gather(values, np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [105, 106, 109, 110, 111]
    assert gather(values, np.array([], int), np.array([], int)).tolist() == []


SAMPLE = 40


def chunks(count):
    return TokenFiles(Path(), "{number:06d}.arrow", count)


def some(items):
    rng = np.random.default_rng(len(items))
    return [items[int(i)] for i in {0, len(items) - 1, *rng.integers(0, len(items), SAMPLE)}]


@pytest.mark.parametrize(
    ("files", "buckets"),
    [(256, 110), (257, 110), (257, 4), (4000, 1700), (60_000, 25_000), (70_000, 29_000), (1_190_000, 419_000)],
)
@pytest.mark.parametrize("validation_share", [0.02, 1e-5])
def test_no_unit_opens_more_than_256_files_at_any_size(make_config, tmp_path, files, buckets, validation_share):
    build = begun_build(tmp_path, make_config())
    levels = step5_documents.plan_levels(chunks(files), tmp_path, buckets)
    opens = 0
    for before, after in pairwise(levels):
        units = step5_documents.merge_units(build, before, after)
        for unit in some(units):
            assert len(unit.argument.sources) <= step5_documents.MAX_FILES
        opens += before.blocks * before.files * max(1, after.blocks // before.blocks)
    assert opens <= step5_documents.MAX_FILES * files
    counts = {"train": buckets, "validation": step5_documents.validation_buckets(buckets, validation_share)}
    for unit in some(step5_documents.bucket_units(build, levels[-1], counts)):
        assert 0 < len(unit.argument.sources) <= step5_documents.MAX_FILES
    assert counts["validation"] == max(1, round(buckets * validation_share)) or buckets > 4096


def test_ten_terabytes_open_each_file_a_few_times(make_config, tmp_path):
    """They took 3e8 opens of tokenized chunks, and 2e9 of what these were merged into."""
    build = begun_build(tmp_path, make_config())
    levels = step5_documents.plan_levels(chunks(1_190_000), tmp_path, 419_000)
    assert [level.blocks * level.files for level in levels] == [1_190_000, 4649, 4864]
    units = step5_documents.bucket_units(build, levels[-1], {"train": 419_000})
    assert max(len(unit.argument.sources) for unit in some(units)) <= 2 * 19


def test_merged_text_and_documents_split_again_have_no_name_in_common():
    """Both have records in one step, and a record is found by its name."""
    text, again = (
        {file.name for file in step5_documents.plan_levels(TokenFiles(Path(), name, 70_000), Path(), 700)}
        for name in (NAME, SPLIT_AGAIN_NAME)
    )
    assert len(text | again) == 6


@pytest.mark.parametrize("files", [3, 300, 70_000])
def test_every_part_of_the_hashes_is_in_the_files_that_are_named(files):
    levels = step5_documents.plan_levels(chunks(files), Path(), 700)
    rng = np.random.default_rng(0)
    for hash_ in [0, 2**64 - 1, *map(int, rng.integers(0, 2**64, 30, dtype=np.uint64))]:
        cell = part_of(hash_, 1 << 64, levels[-1].grid)
        low, high = hash_range(cell, levels[-1].grid)
        assert low <= hash_ < high
        for file in levels[-1].overlapping(hash_, hash_ + 1):
            assert [file.first_cell + index for index in file.batches(hash_, hash_ + 1)] == [cell]


def test_range_is_read_from_the_batches_that_hold_it(tmp_path):
    """Documents of two splits, in files of one batch and of many, give what a search of all of them gives."""
    rng = np.random.default_rng(1)
    schema, grid, count = document_schema(1000), 7, 200
    lengths = rng.integers(1, 5, count)
    whole = TokenizedDocuments(
        rng.integers(0, 2**64, count, dtype=np.uint64), rng.integers(0, 2, count).astype(np.uint8),
        np.zeros(count, np.uint16), rng.integers(0, 999, lengths.sum()).astype(np.uint16), lengths,
        offsets_of(np.ones(count, np.int64)),
    )  # fmt: skip
    order = np.lexsort((whole.hashes_D, whole.splits_D))
    whole.take(order).write(tmp_path / "one.arrow", schema)
    cells = [np.flatnonzero((whole.hashes_D >= low) & (whole.hashes_D <= np.uint64(high - 1)))
             for low, high in (hash_range(cell, grid) for cell in range(grid))]  # fmt: skip
    batches = [whole.take(rows[np.lexsort((whole.hashes_D[rows], whole.splits_D[rows]))]) for rows in cells]
    write_batches(tmp_path / "many.arrow", schema, [batch.to_batch(schema) for batch in batches])
    one, many = TokenFile(tmp_path / "one.arrow"), TokenFile(tmp_path / "many.arrow", 0, grid, grid)
    for number in range(11):
        low, high = hash_range(number, 11)
        parts = [TokenReader([file], 1000).read([0, 1], low, high) for file in (one, many)]
        expected = np.sort(whole.hashes_D[(whole.hashes_D >= low) & (whole.hashes_D <= np.uint64(high - 1))])
        for part in parts:
            assert np.array_equal(np.sort(part.hashes_D), expected)
        assert np.array_equal(parts[0].ids_T, parts[1].ids_T)
        assert np.array_equal(parts[0].sentence_lengths_S, parts[1].sentence_lengths_S)
