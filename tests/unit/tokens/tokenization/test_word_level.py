"""Tables of symbols as tokenizers: ids of texts, in transformers too, and that no text can spell a special piece."""

import pickle

import pytest

from megabert.tokens.tokenization import load_tokenizer, save_huggingface, word_level_tokenizer
from megabert.tokens.tokenization.special_pieces import SpecialNames
from megabert.tokens.tokenization.written import readable_pieces, written_pieces

NAMES = SpecialNames()


def table(*symbols):
    return word_level_tokenizer([*NAMES, *symbols], NAMES, where="symbols")


def test_single_characters_need_no_spaces():
    tokenizer = table(*"ACGT")
    assert tokenizer.encode("ACG TN\nA").tolist() == [5, 6, 7, 8, 1, 5]
    assert tokenizer.decode([2, 5, 6, 4, 3]) == "[CLS] A C [MASK] [SEP]"


def test_tables_of_numbers_are_known():
    assert table(*map(str, range(5, 9))).reads_numbers
    assert not table("5", "A").reads_numbers
    assert table("5", "A").is_symbol_table


def test_the_copy_of_a_table_that_reads_text_is_made_for_the_first_text():
    tokenizer = table("5", "A")
    assert "_encoder" not in vars(tokenizer)
    assert tokenizer.encode("A 5").tolist() == [6, 5]
    assert "_encoder" in vars(tokenizer)


def test_longer_symbols_are_separated_by_spaces():
    tokenizer = table("ACGTAC", "GG", "A")
    assert tokenizer.encode("A GG ACGTAC GGA").tolist() == [7, 6, 5, 1]
    assert not tokenizer.is_subword.any()
    assert readable_pieces(tokenizer, [5, 4]) == ["ACGTAC", "[MASK]"]
    assert written_pieces(tokenizer)[6] == (b"GG", True)


@pytest.mark.parametrize("symbols", [("A", "C"), ("AC", "GT")])
def test_texts_cannot_spell_special_pieces(symbols):
    tokenizer = table(*symbols)
    assert set(tokenizer.encode("[MASK] [SEP]A [CLS]").tolist()) <= {1, 5, 6}


@pytest.mark.parametrize("symbols", [("A", "C", "G"), ("AC", "GT")])
def test_folders_give_the_same_tokenizer(tmp_path, symbols):
    from transformers import AutoTokenizer

    tokenizer, text = table(*symbols), " ".join(symbols) + " X"
    save_huggingface(tokenizer, tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.sha256 == tokenizer.sha256 == pickle.loads(pickle.dumps(again)).sha256
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text)["input_ids"] == [2, *again.encode(text), 3]
    assert theirs.mask_token_id == 4
    assert theirs(f"{symbols[0]} [MASK]")["input_ids"] == [2, 5, 4, 3]
