import gzip
import os

import pyarrow as pa
import pytest
from unit.data_prep.conftest import SENTENCES, files_of, write_jsonl

from data_prep.config.build import SourceConfig
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards
from data_prep.vocabulary.training import VocabularyOptions, train_vocabulary
from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe


def assert_nothing_to_read(folder):
    """No manifest, no instances, no temporary file."""
    assert not [name for name in files_of(folder) if "instances" in name or name.endswith(".tmp")]


@pytest.mark.parametrize("pieces", ["byte_bpe", "unigram"])
def test_vocabulary_that_cannot_be_uncased_is_refused_before_the_text_is_read(small_build, pieces):
    message = small_build("--input", "missing.txt", "--pieces", pieces, "--uncased", "true", code=2).err
    assert f"uncased: a {pieces} vocabulary keeps case and accents; train wordpiece instead" in message


def test_documents_of_one_sentence_are_refused_with_the_remedy(tmp_path, small_build):
    texts = [SENTENCES] * 7 + [f"Only sentence number {i}." for i in range(3)]
    message = small_build(texts=texts, code=3).err
    assert "3 of 10 documents have one sentence" in message
    assert "objective: none" in message
    assert_nothing_to_read(tmp_path)
    message = small_build("--objective", "none", texts=texts).err
    assert "extract: 1/1 units, 1 done before" in message  # the remedy concerns later steps


def test_input_that_was_refused_can_be_fixed(tmp_path, small_build):
    texts = [SENTENCES * (i + 1) for i in range(20)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    path.write_bytes(path.read_bytes() + b"{broken\n")
    assert "line 21 is no JSON" in small_build("--input", path, code=3).err
    message = small_build(texts=texts).err
    assert "a.jsonl changed, added or gone). Kept: nothing. Repeated: text, vocabulary" in message
    # A build that was not refused is only continued as it was begun.
    assert "another configuration" in small_build("--vocab-size", "300", texts=texts, code=2).err


def test_lost_end_of_a_compressed_file_is_refused_or_warned_of(tmp_path, small_build):
    texts = [f"{os.urandom(300).hex()}. {SENTENCES}\n\n" for _ in range(600)]
    first, second = (gzip.compress("".join(texts[i::2]).encode()) for i in (0, 1))
    packed = first + b"xx" + second[2:]
    (tmp_path / "a.txt.gz").write_bytes(packed)
    flags = ("--input", tmp_path / "a.txt.gz", "--tokenizer", make_tokenizer(tmp_path), "--lengths", "512")
    assert "a.txt.gz: damaged gz" in small_build(*flags, code=3).err
    # Text after the damage counts by its bytes: one damaged file may be a small share of the documents.
    message = small_build(*flags, "--max-bad-share", "0.2", code=3).err
    assert f"{len(second):,} of {len(packed):,} bytes" in message
    message = small_build(*flags, "--max-bad-share", "0.9").err
    assert "warning: 1 damaged file: what follows is not in the shards" in message


def make_tokenizer(folder):
    """A byte-level vocabulary, which writes every text."""
    words = " ".join(f"{os.urandom(300).hex()} {SENTENCES}" for _ in range(50))
    save_huggingface(train_byte_bpe([words], vocab_size=300), folder / "tokenizer")
    return folder / "tokenizer"


def test_file_that_changes_while_it_is_read_is_refused(tmp_path, make_config, texts):
    path = write_jsonl(tmp_path / "in.jsonl", texts[:40])
    config = make_config(sources=(SourceConfig(input=str(path)),), chunk_mib=0.02, lengths=(64,), dupe_factor=1)

    class Changing(Executor):
        def run(self, function, tasks):
            for index, task in enumerate(tasks):
                if str(task).startswith("extract 000002"):
                    write_jsonl(path, texts[1:40])
                yield index, function(task)

    with pytest.raises(DataError, match=r"in\.jsonl: changed while the build read it"):
        build_shards(config, tmp_path / "out", Changing())
    # Nothing of the other text was kept: the first one, put back, gives its own bytes.
    write_jsonl(path, texts[:40])
    first = build_shards(config, tmp_path / "out", Executor())
    second = build_shards(config, tmp_path / "again", Executor())
    assert [m.data_sha256 for m in first.manifests.values()] == [m.data_sha256 for m in second.manifests.values()]


def test_single_document_is_trained_on_whatever_its_hash(small_build):
    """Two of 40 one-document corpora would be held out by the vocabulary, and then have no words."""
    for number in range(40):
        report = train_vocabulary([(f"{number:016x}", SENTENCES)], VocabularyOptions(vocab_size=100))[1]
        assert (report.trained_documents, report.held_out_documents) == (1, 0)
    flags = ("--objective", "none", "--validation-share", "0.9999")
    message = small_build(*flags, texts=[SENTENCES * 3], code=3).err
    assert "1 different document(s): objective=none needs 1 to train on and 1 held out" in message
    small_build(*flags[:-2], texts=[SENTENCES * 3])


def test_few_documents_of_one_sentence_are_counted_and_kept(small_build):
    """They stay documents of the build, so nothing is dropped: read documents are kept ones and dropped ones."""
    printed = small_build(texts=[SENTENCES] * 9 + ["Only one sentence."]).out
    assert "too short for a pair (one sentence): 1 documents" in printed
    assert "dropped, not counting the rules below: nothing" in printed


def test_vocabulary_of_files_of_which_too_much_is_lost_is_refused(tmp_path, megabert_data):
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [f"{SENTENCES} It is number {i}." for i in range(9)])
    path.write_text(path.read_text() + "no JSON\n")
    flags = ["vocab", "--input", str(path), "--output", str(tmp_path / "out"), "--pieces", "byte_bpe"]
    flags += ["--vocab-size", "300"]
    said = megabert_data(*flags, "--max-bad-share", "0.05", code=3).err
    assert "1 bad line of 10 documents cannot be read; max_bad_share=0.05" in said
    megabert_data(*flags, "--max-bad-share", "0.1")


def test_word_of_a_million_letters_is_counted_and_does_not_decide_on_a_vocabulary(small_build):
    """None of its letters is in another word, so that the vocabulary has no piece for them."""
    printed = small_build(texts=[f"{SENTENCES} It is number {i}." for i in range(40)] + ["Z" * 1_000_000]).out
    # A paragraph of that length is read in windows of 262,144 characters, so the word is counted in parts.
    assert "5 words of more than 5,000 characters" in printed


@pytest.mark.parametrize(("unit", "warns"), [("whole_word", True), ("token", False)])
def test_words_longer_than_an_instances_share_are_hardly_masked_and_that_is_said(small_build, unit, warns):
    letters = "".join(chr(0x4E00 + i) for i in range(60))
    texts = [f"{letters[i % 7 :] * 2}\u3002{letters[i % 11 :] * 2}\u3002" for i in range(40)]
    flags = "--language zh --pieces byte_bpe --vocab-size 300 --objective none --lengths 64 --validation-share 0.1"
    said = small_build(*flags.split(), "--mask-unit", unit, texts=texts).err
    assert ("Use --mask-unit token" in said) == warns


@pytest.mark.parametrize(("texts", "warns"), [([SENTENCES] * 12, True), (None, False)])
def test_copies_of_one_text_have_no_random_next_and_that_is_said(small_build, texts, warns):
    said = small_build(texts=texts or [f"{SENTENCES} {SENTENCES[: 20 + i]}." for i in range(12)]).err
    assert ("have a random next sentence" in said) == warns


def test_vocabulary_without_mask_is_refused_before_anything_is_written(tmp_path, small_build):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "##s"]) + "\n")
    assert "[MASK]" in small_build("--tokenizer", tmp_path / "v", texts=[SENTENCES] * 9, code=3).err
    assert not (tmp_path / "out").exists()


def test_table_without_a_row_is_an_empty_corpus(tmp_path, small_build):
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("text", pa.string())])):
        pass
    message = small_build("--input", tmp_path / "a.arrow", code=3).err
    assert "The corpus is empty: no row in" in message
    assert "a.arrow" in message


def test_corpus_of_one_document_above_the_limit_is_named_with_the_limit(tmp_path, small_build, monkeypatch):
    monkeypatch.setattr("data_prep.extract.text.MAX_DOCUMENT_BYTES", 1000)
    (tmp_path / "a.txt").write_text(f"{SENTENCES}\n" * 20)
    message = small_build("--input", tmp_path / "a.txt", code=3).err
    assert "(dropped: 1 oversized_documents). Give --input files that hold text. Part long documents: blank" in message
    assert "a.txt: the document at byte 0 is above 32 MiB" in message
    assert "fewer rules" not in message


def test_weight_that_leaves_no_document_is_named(small_build):
    texts = [f"{SENTENCES} It is number {i}." for i in range(9)]
    flags = "--sources.0.weight 0.0001 --pieces byte_bpe --vocab-size 300"
    message = small_build(*flags.split(), texts=texts, code=3).err
    assert "(the weights of their sources leave out 9 documents: raise them). Give more text." in message


def test_given_tokenizer_that_does_not_know_the_text_is_refused_before_instances(tmp_path, small_build, tokenizer):
    korean = ["\uc548\ub155 \uc138\uacc4. \uc798 \uc9c0\ub0c8\ub2c8? \uc751."] * 9
    message = small_build("--tokenizer", tokenizer, texts=korean, code=3).err
    assert "of the words become [UNK]" in message
    assert "leave --tokenizer out" in message
    assert_nothing_to_read(tmp_path)
