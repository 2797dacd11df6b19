"""Words that are counted by many workers give the vocabulary of the same documents read one after the other."""

import dataclasses

import pytest

from data_prep.documents.document_set import hash_text
from data_prep.steps import step2_vocabulary
from data_prep.steps.step1_extract import _TextPart
from data_prep.steps.step2_vocabulary import CountTask, count_words, extracted_texts, held_out_of, merge_words
from data_prep.vocabulary.training import VocabularyOptions, train_on_spans, train_vocabulary


@pytest.fixture(scope="module")
def extracted(texts, tmp_path_factory):
    """Files of extracted documents, and one without any."""
    folder, paths = tmp_path_factory.mktemp("extracted"), []
    for number in range(4):
        part = _TextPart(0)
        for text in texts[number::3] if number < 3 else []:
            part.add(hash_text(text), text.splitlines())
        paths.append(part.write(folder / f"{number}.arrow"))
    return paths


def counted(extracted, folder, options, share=1.0):
    tasks = [CountTask(tuple(extracted[n : n + 2]), share, options, folder / f"{n:05d}") for n in (0, 2)]
    for task in tasks:
        count_words(task)
    return [task.path for task in tasks]


@pytest.mark.parametrize(("pieces", "share"), [("wordpiece", 1.0), ("byte_bpe", 0.6), ("unigram", 0.6)])
def test_counts_of_parts_give_the_vocabulary_and_the_report_of_all(extracted, tmp_path, monkeypatch, pieces, share):
    monkeypatch.setattr(step2_vocabulary, "ROWS_PER_MERGE", 1000)
    options = VocabularyOptions(pieces=pieces, vocab_size=1000, held_out_share=0.2)
    names = counted(extracted, tmp_path, options, share)
    level, words = merge_words(names, float("inf"))
    tokenizer, report = train_on_spans(words, held_out_of(names, level, words, options), options)
    documents = [(name, text) for path in extracted for name, text, _ in extracted_texts(path, share)]
    expected, expected_report = train_vocabulary(documents, options)
    assert level == 0
    assert tokenizer.sha256 == expected.sha256
    assert report == dataclasses.replace(expected_report, endless_words=report.endless_words)


def test_lowest_levels_are_left_out_until_the_words_fit(extracted, tmp_path):
    options = VocabularyOptions(vocab_size=1000)
    names = counted(extracted, tmp_path, options)
    whole = merge_words(names, float("inf"))[1]
    level, words = merge_words(names, len(whole) // 2)
    assert level >= 1
    assert 0 < len(words) <= len(whole) // 2
    documents = [(name, text) for path in extracted for name, text, own in extracted_texts(path, 1.0) if own >= level]
    expected, _ = train_vocabulary(documents, options)
    assert train_on_spans(words, held_out_of(names, level, words, options), options)[0].sha256 == expected.sha256
    highest, least = merge_words(names, 0)
    assert highest > level
    assert len(least) > 0
