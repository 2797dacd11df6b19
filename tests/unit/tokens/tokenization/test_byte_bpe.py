"""Byte-level BPE and SentencePiece's Unigram: ids are transformers'."""

import json
import random

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from unit.tokens.tokenization.conftest import encoded, library_ids

from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.tokenization import Tokenizer, load_tokenizer, save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe
from megabert.tokens.tokenization.written import readable_pieces

TEXTS = [
    "The whale, the WHALE's tail; it isn't (quite) 1,234.5 feet long!",
    "two  spaces, three   spaces,\ta tab and\n\na gap ",
    "\ub300\ud55c\ubbfc\uad6d \ud5cc\ubc95 na\u00efve \u00c9COLE \U0001f433 \u6d77",
    "a literal <mask> and </s> are text",
    "",
    " ",
]


@pytest.fixture(scope="session")
def bpe(english_texts):
    return train_byte_bpe(english_texts, vocab_size=1500)


@pytest.fixture(scope="session")
def bpe_folder(bpe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bpe")
    save_huggingface(bpe, folder)
    return folder


def theirs(tokenizer, texts):
    """Ids of transformers, special pieces in a text taken for text as ours do."""
    return [tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] for text in texts]


def test_pieces_are_robertas(bpe):
    assert bpe.vocab_size == 1500
    assert bpe.pieces[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert bpe.special_ids._asdict() == {"pad": 1, "unk": 3, "cls": 0, "sep": 2, "mask": 4}
    assert bpe.kind.name == "byte_bpe"
    pieces = bpe.encode(" It is unquestionably there")
    assert (~bpe.is_subword[pieces]).sum() == 4
    assert bpe.is_subword[bpe.encode("It")[0]]  # without a space before it, it may be the rest of a word
    assert not bpe.is_subword[:5].any()


def test_pieces_are_shown_as_text(bpe):
    text = " the whale spoke \ub300\ud55c"
    shown = "".join(readable_pieces(bpe, bpe.encode(text).tolist()))
    assert shown.replace("\u2581", " ").startswith(" the whale spoke ")
    one_byte = [bpe.vocab[piece] for piece in ("a", "\u0120", "\u00eb", "\u0107", "<mask>")]
    assert readable_pieces(bpe, one_byte) == ["a", "\u2581", "<eb>", "<07>", "<mask>"]


def test_every_text_can_be_written_and_comes_back(bpe):
    for text in TEXTS:
        ids = bpe.encode(text)
        assert bpe.special_ids.unk not in ids
        assert bpe.decode(ids) == text


def test_ids_are_those_of_transformers(bpe, bpe_folder, english_texts):
    texts = [*TEXTS, *english_texts[:5]]
    expected = theirs(transformers.AutoTokenizer.from_pretrained(bpe_folder), texts)
    assert encoded(bpe, texts) == expected
    again = load_tokenizer(bpe_folder)
    assert again.sha256 == bpe.sha256
    assert encoded(again, texts) == expected


# White space of all kinds, alone and next to spaces; what GPT-2's pattern treats apart; words too long to look through.
JOINTS = [*[" "] * 10, "  ", "   ", "", "-", "/", "\t", "\n ", " \t", "\x85", "\u00a0", " \u00a0", "  \u3000"]
JOINTS += ["\u1680", "\u180e", "\u2028", "\u2029 ", "\u205f", "\u200b", " \u201c", "\ufeff", " \ufeff"]
ODD_WORDS = ["don't", "'s", "'ll", "I'VE", "'re", "''", "x'", "1234", "12.5", "a1b2", "=" * 100, "ab" * 40, "0" * 200]
ODD_WORDS += ["\ud5cc\ubc95", "na\u00efve", "\U0001f433", "\u3042\u3044", "\u0301", "\u0664", "\u2167"]


@pytest.mark.parametrize("adds_space", [False, True])
@pytest.mark.parametrize("count", [1_500, pytest.param(120_000, marks=pytest.mark.soak)])
def test_fast_ids_are_those_of_the_library(bpe, english_texts, count, adds_space):
    generator = random.Random(count)
    words = [*english_texts[0].split(), *ODD_WORDS]

    def sentence():
        parts = (generator.choice(words) + generator.choice(JOINTS) for _ in range(generator.randrange(1, 14)))
        return generator.choice(["", "", " ", "  ", "\n"]) + "".join(parts)

    def printable():
        return "".join(generator.choices(" '  abcdstmrevl.,1239AB\"-", k=generator.randrange(60)))

    texts = ["", " ", "  ", "\n", "a ", "  a", *TEXTS, *english_texts, " ".join(english_texts[:3]).replace(" ", "")]
    texts += [make() for make in (sentence, printable) for _ in range(count // 2)]
    state = json.loads(bpe.to_json())
    state["pre_tokenizer"]["add_prefix_space"] = adds_space
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)))
    assert tokenizer._has_spans
    expected = library_ids(tokenizer, texts)
    for _ in range(2):  # words that are new, then known
        found = encoded(tokenizer, texts)
        assert [text for text, one, other in zip(texts, found, expected, strict=True) if one != other] == []


@pytest.mark.parametrize(
    ("where", "setting"),
    [("model", {"dropout": 0.1}), ("model", {"ignore_merges": True}), ("model", {"end_of_word_suffix": "</w>"}),
     ("pre_tokenizer", {"use_regex": False}), (None, {"normalizer": {"type": "Lowercase"}})],
)  # fmt: skip
def test_unusual_byte_bpe_is_left_to_the_library(bpe, where, setting):
    state = json.loads(bpe.to_json())
    (state[where] if where else state).update(setting)
    assert not Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)))._has_spans


def test_transformers_reads_special_pieces_as_robertas(bpe_folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(bpe_folder)
    ids = tokenizer("The <mask> swims.")["input_ids"]
    assert (ids[0], ids[-1], ids.count(4)) == (0, 2, 1)
    assert tokenizer.mask_token == "<mask>"
    assert tokenizer("a", "b")["input_ids"].count(2) == 2  # <s> a </s> b </s>, as instances are written


def test_folders_of_vocabulary_and_merges_alone_are_read(bpe, bpe_folder, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((bpe_folder / name).read_bytes())
    assert load_tokenizer(tmp_path).sha256 == bpe.sha256
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(DataError, match=r"vocab\.json: there is no merges\.txt"):
        load_tokenizer(tmp_path)


def test_vocabulary_does_not_depend_on_the_order_of_texts(bpe, english_texts):
    assert train_byte_bpe(english_texts[::-1], vocab_size=1500).sha256 == bpe.sha256


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="vocab_size=260 must be 261 at least"):
        train_byte_bpe(["text"], vocab_size=260)
    with pytest.raises(DataError, match="no words that repeat"):
        train_byte_bpe(["abc"], vocab_size=300)


@pytest.fixture(scope="module")
def unigram_folder(english_texts, tmp_path_factory):
    """A tokenizer.json as transformers makes of ALBERT's SentencePiece model."""
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>", show_progress=False)
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(english_texts[:20], trainer)
    folder = tmp_path_factory.mktemp("unigram")
    backend.save(str(folder / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "<pad>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_unigram_ids_are_those_of_transformers(unigram_folder, tmp_path):
    tokenizer = load_tokenizer(unigram_folder)
    assert tokenizer.kind.name == "unigram"
    assert tokenizer.special_ids._asdict() == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    texts = TEXTS[:3]
    expected = theirs(transformers.AutoTokenizer.from_pretrained(unigram_folder), texts)
    assert encoded(tokenizer, texts) == expected
    save_huggingface(tokenizer, tmp_path)
    assert load_tokenizer(tmp_path).sha256 == tokenizer.sha256
    assert theirs(transformers.AutoTokenizer.from_pretrained(tmp_path), texts) == expected
    assert not tokenizer.is_subword[tokenizer.encode("the whale")[0]]
    spelt = {tokenizer.pieces[index] for index in tokenizer.encode("a [MASK] [SEP]")}
    assert not spelt & {"[MASK]", "[SEP]"}


@pytest.mark.parametrize("name", ["spiece.model", "spm.model"])
def test_sentencepiece_without_tokenizer_json_names_the_way(name, tmp_path):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"has no tokenizer\.json.*AutoTokenizer.from_pretrained\('.*save_pretrained"):
        load_tokenizer(tmp_path)


BRACKETED = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
PAIR = ("The whale's tail", "is  long")


def check_deberta(folder, their_tokenizer):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.names._asdict() == BRACKETED
    assert tokenizer.vocab_size == len(their_tokenizer)
    assert encoded(tokenizer, TEXTS) == theirs(their_tokenizer, TEXTS)
    one, two = (tokenizer.encode(text).tolist() for text in PAIR)
    special = tokenizer.special_ids
    between = [special.sep] * tokenizer.separators_in_pair
    assert their_tokenizer(*PAIR)["input_ids"] == [special.cls, *one, *between, *two, special.sep]
    return tokenizer


def test_debertas_byte_bpe_is_read_with_its_special_pieces(bpe, tmp_path):
    """With its tokenizer.json, and as its authors published it: settings that name no special piece."""
    state = json.loads(bpe.to_json())["model"]
    renamed = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
    vocabulary = {renamed.get(piece, piece): index for piece, index in state["vocab"].items()}
    merges = [tuple(pair) for pair in state["merges"]]
    deberta = transformers.DebertaTokenizer(vocab=vocabulary, merges=merges)
    deberta.save_pretrained(tmp_path / "saved")
    saved = check_deberta(tmp_path / "saved", deberta)
    published = tmp_path / "published"
    published.mkdir()
    (published / "vocab.json").write_text(json.dumps(vocabulary))
    (published / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges), encoding="utf-8")
    (published / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "gpt2"}')
    assert check_deberta(published, deberta).special_ids == saved.special_ids


def test_debertas_unigram_is_read_with_the_mask_behind_its_pieces(unigram_folder, tmp_path):
    pieces = json.loads((unigram_folder / "tokenizer.json").read_text())["model"]["vocab"][5:]
    special = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    deberta = transformers.DebertaV2Tokenizer(vocab=[*special, *map(tuple, pieces)])
    deberta.save_pretrained(tmp_path)
    assert check_deberta(tmp_path, deberta).special_ids.mask == len(pieces) + 4
    (tmp_path / "tokenizer_config.json").unlink()  # which names the special pieces
    check_deberta(tmp_path, deberta)
