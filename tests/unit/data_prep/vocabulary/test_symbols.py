"""The vocabulary of ids: tables of symbols, numbers alone, and which tables are refused."""

import pytest

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.vocabulary.symbols import tokenizer_of_ids, vocabulary_lines
from megabert.foundation.errors import DataError


def config_of(**settings):
    return BuildConfig(sources=(SourceConfig(input="x.jsonl", format="ids"),), objective="none", **settings)


def write(folder, *symbols):
    (folder / "symbols.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    return str(folder / "symbols.txt")


def test_numbers_are_their_own_symbols():
    config = config_of(vocab_size=12, special_ids=(0, 1, 9, 3, 4))
    tokenizer = tokenizer_of_ids(config)
    assert tokenizer.special_ids == (0, 1, 9, 3, 4)
    assert tokenizer.encode("11 2 12 5").tolist() == [11, 2, 1, 5]
    assert "reads the numbers of ids" in vocabulary_lines(config, tokenizer)[1]


def test_lines_of_a_table_are_ids(tmp_path):
    path = write(tmp_path, "A", "C", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")
    assert tokenizer_of_ids(config_of(symbols=path)).special_ids == (5, 6, 2, 3, 4)
    path = write(tmp_path, "<s>", "<pad>", "</s>", "<unk>", "<mask>", "A")
    assert tokenizer_of_ids(config_of(symbols=path)).special_ids == (1, 3, 0, 2, 4)


def test_byte_order_mark_and_carriage_returns_are_no_part_of_a_symbol(tmp_path):
    path = tmp_path / "symbols.txt"
    path.write_bytes(b"\xef\xbb\xbf[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nA\r\n")
    assert tokenizer_of_ids(config_of(symbols=str(path))).pieces == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A"]


def test_special_lines_can_have_any_spelling(tmp_path):
    path = write(tmp_path, "none", "gap", "from", "to", "hide", "A")
    tokenizer = tokenizer_of_ids(config_of(symbols=path, special_ids=(0, 1, 2, 3, 4)))
    assert tokenizer.names.mask == "hide"


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (["[PAD]", "A B"], "line 2 is 'A B'; a symbol is one or more characters without white space"),
        (["[PAD]", "", "A"], "line 2 is ''"),
        (["A", "C", "A"], "line 3 repeats the symbol 'A' of line 1"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "A"], r"does not have all of \[PAD\] .* --special-ids"),
    ],
)
def test_unfit_tables_are_refused(tmp_path, symbols, message):
    with pytest.raises(DataError, match=message):
        tokenizer_of_ids(config_of(symbols=write(tmp_path, *symbols)))


def test_special_lines_have_to_be_there(tmp_path):
    config = config_of(symbols=write(tmp_path, *"ACGTN"), special_ids=(0, 1, 2, 3, 5))
    with pytest.raises(DataError, match="has 5 symbols, and special_ids names id 5"):
        tokenizer_of_ids(config)
