import json

import pytest
import tokenizers
import transformers
from support.tiny_models import tiny_model
from unit.tokens.tokenization.conftest import edit_json

from megabert.downstream.inspection.attention import record_attention
from megabert.downstream.inspection.encode_text import encode_text, pack_text
from megabert.downstream.inspection.similar import word_ids
from megabert.tokens.tokenization import Tokenizer, load_tokenizer, save_huggingface, train_unigram
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


MASKED = [
    "The MASK.",
    "MASK",
    "MASK sailed",
    "the seaMASK",
    "the MASKing",
    " the  MASK  sea ",
    "a MASK MASK\nsea",
    "(MASK)",
]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_mask_adds_no_space_to_the_text_after_it(scheme, tmp_path):
    """The mask of the file takes the spaces before it, as ours always does."""
    unigram = train_unigram(TEXTS, vocab_size=90)
    state = json.loads(unigram.to_json())
    state["pre_tokenizer"]["prepend_scheme"] = scheme
    for token in state["added_tokens"]:
        token["lstrip"] = token["content"] == "[MASK]"
    save_huggingface(unigram, tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    edit_json(tmp_path / "tokenizer_config.json", added_tokens_decoder=None, mask_token=None)
    (tmp_path / "special_tokens_map.json").unlink()
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [text.replace("MASK", "[MASK]") for text in MASKED]
    assert [encode_text(ours, text, limit=99).ids.tolist() for text in texts] == theirs(texts)["input_ids"]


@pytest.mark.parametrize("lstrip", [True, False])
def test_a_mask_takes_the_spaces_before_it_whatever_its_file_says(lstrip):
    state = json.loads(train_byte_bpe(TEXTS, vocab_size=300).to_json())
    for token in state["added_tokens"]:
        token["lstrip"] = lstrip
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)))
    ids = encode_text(tokenizer, "the  <mask> sea", limit=99).ids.tolist()
    the, sea = tokenizer.encode_batch(["the", " sea"])
    assert ids == tokenizer.join([*the, tokenizer.special_ids.mask, *sea])[0].tolist()


@pytest.mark.parametrize("rows", [1, 2])
def test_roberta_attends_within_a_pair_without_segments(rows, tmp_path):
    save_huggingface(train_byte_bpe(TEXTS, vocab_size=300), tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", tokenizer_class="RobertaTokenizer")
    tokenizer = load_tokenizer(tmp_path)
    model = tiny_model("roberta", vocab_size=tokenizer.vocab_size, type_vocab_size=rows).eval()
    assert not pack_text(model, tokenizer, "the ship", "the sea")[1].segment_ids_T.any()
    record = record_attention(model, tokenizer, "the ship", "the sea")
    assert record.pieces.count("</s>") == 3
    assert record.pieces[record.segment_b_start - 1] == "</s>"


def test_a_byte_level_word_is_looked_up_as_inside_a_sentence():
    tokenizer = train_byte_bpe(TEXTS, vocab_size=300)
    assert [tokenizer.pieces[index] for index in word_ids("ship", tokenizer)] == ["\u0120ship"]
