import pytest
import transformers
from support.tiny_models import tiny_model

from megabert.downstream.inspection.attention import record_attention
from megabert.downstream.inspection.encode_text import encode_text, pack_text
from megabert.downstream.inspection.similar import word_ids
from megabert.tokens.tokenization import load_tokenizer, save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe, train_wordpiece

TEXTS = ["the ship sailed over the sea", "the sea took the ship", "a ship sailed"] * 3


@pytest.fixture(scope="module", params=[train_wordpiece, train_byte_bpe])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_huggingface(request.param(TEXTS, vocab_size=300), folder)
    return folder


def test_ids_of_texts_and_pairs_are_those_of_transformers(folder):
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    first, second = f"the {theirs.mask_token} sailed over {theirs.mask_token}", "the sea took the ship"
    assert encode_text(ours, first, limit=99).ids.tolist() == theirs(first)["input_ids"]
    pair = encode_text(ours, first, second, limit=99)
    assert pair.ids.tolist() == theirs(first, second)["input_ids"]
    assert pair.segment_b_start == len(pair.ids) - len(ours.encode(second)) - 1


@pytest.mark.parametrize("rows", [1, 2])
def test_roberta_attends_within_a_pair_without_segments(rows):
    tokenizer = train_byte_bpe(TEXTS, vocab_size=300)
    model = tiny_model("roberta", vocab_size=tokenizer.vocab_size, type_vocab_size=rows).eval()
    assert not pack_text(model, tokenizer, "the ship", "the sea")[1].segment_ids_T.any()
    record = record_attention(model, tokenizer, "the ship", "the sea")
    assert record.pieces.count("</s>") == 3
    assert record.pieces[record.segment_b_start - 1] == "</s>"


def test_a_byte_level_word_is_looked_up_as_inside_a_sentence():
    tokenizer = train_byte_bpe(TEXTS, vocab_size=300)
    assert [tokenizer.pieces[index] for index in word_ids("ship", tokenizer)] == ["\u0120ship"]
