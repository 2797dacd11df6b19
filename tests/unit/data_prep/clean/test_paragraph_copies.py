"""Who keeps a paragraph that several documents have: the text decides, not how it is cut into files and chunks."""

import random

import numpy as np
import pytest
from unit.data_prep.builds import hashes_of_data
from unit.data_prep.conftest import begun_build, write_jsonl

from data_prep.clean import grouped_hashes, paragraph_copies
from data_prep.clean.grouped_hashes import HashPlan, text_hash
from data_prep.clean.paragraph_copies import COPIES, ParagraphHashes, ParagraphOwners, find_paragraph_copies, write_kept
from data_prep.config.build import SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.documents.document_set import hash_text

LONG = 10


def random_documents(count):
    """Documents of few different paragraphs, some of them short, some documents equal to others."""
    chance = random.Random(count)
    words = [f"paragraph {number}" for number in range(count)] + ["short"]
    documents = [[chance.choice(words) for _ in range(chance.randint(1, 6))] for _ in range(count)]
    return documents + documents[:3]


def write_hashes(documents, path):
    """Write the rows of documents of which some were dropped after they were read, and return their number."""
    hashes, dropped = ParagraphHashes(LONG, are_all_kept=False), ["paragraph 1", "paragraph 2", "paragraph 3"]
    source = path.with_name(f"{path.stem}-source.npy")
    assert list(hashes.of(iter([dropped, *documents]))) == [dropped, *documents]
    hashes.write(source)
    kept = write_kept(source, np.array([text_hash(dropped)], np.uint64), path)
    expected = ParagraphHashes(LONG)
    list(expected.of(iter(documents)))
    expected.write(source)
    assert path.read_bytes() == source.read_bytes()
    return kept[1]["paragraphs"]


def kept_by_definition(documents):
    """What each document keeps, from all documents at once."""
    owners = {}
    for document in documents:
        for text in document:
            owners[text] = min(owners.get(text, 1 << 64), text_hash(document))
    return [
        [
            text
            for place, text in enumerate(document)
            if len(text) < LONG or (owners[text] == text_hash(document) and text not in document[:place])
        ]
        for document in documents
    ]


@pytest.mark.parametrize(("chunks", "group", "rows"), [(1, 256, 1 << 20), (7, 2, 5), (40, 3, 11), (40, 256, 3)])
def test_owners_are_the_definitions_however_text_is_parted(make_config, tmp_path, monkeypatch, chunks, group, rows):
    monkeypatch.setattr(grouped_hashes, "MIN_GROUP", group)
    monkeypatch.setattr(grouped_hashes, "HASHES_PER_RANGE", rows)
    monkeypatch.setattr(paragraph_copies, "ROWS_AT_ONCE", rows)
    documents = random_documents(60)
    folder, parts = tmp_path / "work" / "paragraphs", [documents[number::chunks] for number in range(chunks)]
    rows_of = [write_hashes(part, folder / f"{i:06d}.npy") for i, part in enumerate(parts)]
    own = begun_build(tmp_path, make_config())
    (tmp_path / "build.json").touch()
    find_paragraph_copies(own, plan := HashPlan.of(chunks, sum(rows_of)))
    kept = {}
    for number, part in enumerate(parts):
        owners = ParagraphOwners(folder / COPIES.format(number // plan.chunks_a_group), number, LONG)
        kept |= {text_hash(document): owners.kept(document) for document in part}
    expected = kept_by_definition(documents)
    assert kept == {text_hash(document): texts for document, texts in zip(documents, expected, strict=True)}
    assert {text for texts in kept.values() for text in texts} == {text for document in documents for text in document}


def text_of(number):
    return (
        f"Paragraph number {number} is long enough to count as one, " + "and goes on for a while, " * 3 + "to its end."
    )


@pytest.fixture(scope="module")
def repetitive():
    """Documents that share paragraphs; every seventh is too short for the corpus, and is the first to have one."""
    documents = []
    for number in range(120):
        shared = [text_of(1000 + number * step % 23) for step in (1, 5, 7)]
        own = [f"{text_of(number * 3 + i)} It is his. It is hers." for i in range(3)]
        documents.append("\n".join(shared[:1] if number % 7 == 0 else [own[0], *shared, *own[1:]]))
    return documents + documents[40:50]


def test_same_text_gives_the_same_bytes_however_it_is_cut(build, tokenizer, tmp_path, repetitive):
    rules = ("length", "duplicate_paragraphs", "duplicate_documents")
    own = {"tokenizer": tokenizer, "lengths": (64,), "dupe_factor": 1, "buckets": 2}

    def shards(name, documents, *, files=1, **changes):
        for number in range(files):
            write_jsonl(tmp_path / f"{name}-{number:02d}.jsonl", documents[number::files])
        sources = (SourceConfig(input=str(tmp_path / f"{name}-*.jsonl")),)
        built = build(name, sources=sources, clean=CleanConfig(rules=rules, min_characters=300), **own, **changes)
        return hashes_of_data(built.folder), built.manifests[64].statistics["corpus"]

    shuffled = random.Random(1).sample(repetitive, len(repetitive))
    expected, corpus = shards("one", repetitive)
    for other in (
        shards("forty", repetitive, files=40),
        shards("small", repetitive, chunk_mib=0.005),
        shards("backwards", repetitive[::-1], files=3),
        shards("shuffled", shuffled, chunk_mib=0.01),
    ):
        assert other[0] == expected
        assert other[1]["rules"] == corpus["rules"]
    assert corpus["rules"]["duplicate_paragraphs"]["paragraphs"] > 100
    assert corpus["rules"]["length"]["documents"] == 18 + 2


def test_document_that_loses_too_much_is_dropped(build, repetitive):
    """Bounds of the length hold again for what is left: here two shared paragraphs and a short end."""
    first, second = ("\n".join([text_of(1), text_of(2), end]) for end in ("The one end.", "The other end."))
    loser = max((first, second), key=hash_text)
    clean = CleanConfig(rules=("length", "duplicate_paragraphs"), min_characters=100)
    built = build(texts=[*repetitive, first, second], clean=clean, vocab_size=400, lengths=(64,))
    corpus = built.manifests[64].statistics["corpus"]
    assert corpus["rules"]["length"]["documents"] == 1
    assert loser[-12:] in corpus["examples"]["length"][0]
