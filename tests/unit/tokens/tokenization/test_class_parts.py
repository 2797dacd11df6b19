"""Parts of a tokenizer.json that transformers' classes replace by their own, and the others, which they take."""

import functools
import json

import pytest
import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from unit.tokens.tokenization.conftest import assert_read_as_by_transformers, edit_json
from unit.tokens.tokenization.test_folder_settings import write_files

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import load_tokenizer, save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe

TEXTS = ("the ship", "a sea")


def template(single, pair, **ids):
    """Write a template in the form of tokenizer.json."""

    def parts(text):
        for word in text.split():
            name, _, segment = word.partition(":")
            key = "Sequence" if name in "AB" else "SpecialToken"
            yield {key: {"id": name if name in "AB" else f"[{name}]", "type_id": int(segment or 0)}}

    special = {f"[{name}]": {"id": f"[{name}]", "ids": [index], "tokens": [f"[{name}]"]} for name, index in ids.items()}
    return {
        "type": "TemplateProcessing",
        "single": list(parts(single)),
        "pair": list(parts(pair)),
        "special_tokens": special,
    }


IDS = {"CLS": 2, "SEP": 3}
USUAL = template("CLS A SEP", "CLS A SEP B:1 SEP:1", **IDS)
TEMPLATES = {
    "none": None,
    "no CLS": template("A SEP", "A SEP B:1 SEP:1", **IDS),
    "none around a pair": template("CLS A SEP", "A B:1", **IDS),
    "three separators": template("CLS A SEP", "CLS A SEP SEP B:1 SEP:1 SEP:1", **IDS),
    "another piece": template("MASK A SEP", "MASK A SEP B:1 SEP:1", MASK=4, **IDS),
    "the segment of a text": template("CLS:1 A SEP", "CLS A SEP B:1 SEP:1", **IDS),
    "the segments of a pair": template("CLS A SEP", "CLS A SEP B SEP", **IDS),
    "the segments of a pair with two separators": template("CLS A SEP", "CLS A SEP SEP B SEP", **IDS),
}


def write_template(folder, tokenizer, post_processor, **settings):
    write_files(folder, tokenizer, **settings)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8")) | {"post_processor": post_processor}
    path.write_text(json.dumps(content), encoding="utf-8")


def assert_joined_as_by_transformers(folder, *, segments=False):
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    a, b = ours.encode_batch(TEXTS)
    pair, start = ours.join(a, b)
    assert ours.join(a)[0].tolist() == theirs(TEXTS[0])["input_ids"]
    assert pair.tolist() == theirs(*TEXTS)["input_ids"]
    if segments:
        expected = [0] * start + [1] * (len(pair) - start)
        assert theirs(*TEXTS, return_token_type_ids=True)["token_type_ids"] == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_special_pieces_of_a_file_that_join_does_not_write_are_refused(name, cased, tmp_path):
    write_template(tmp_path, cased, TEMPLATES[name], tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(DataError, match=r"tokenizer\.json: post_processor writes a text as '.*megabert reads only"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("stated", ["BertTokenizer", None])
def test_bert_s_class_has_special_pieces_of_its_own(stated, name, cased, tmp_path):
    write_template(tmp_path, cased, TEMPLATES[name], tokenizer_class=stated)
    assert_joined_as_by_transformers(tmp_path, segments=True)


@pytest.mark.parametrize("model_type", ["modernbert", "distilbert", None])
def test_segments_that_no_model_reads_may_be_any(model_type, cased, tmp_path):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_type": model_type}
    write_template(tmp_path, cased, TEMPLATES["the segments of a pair"], **settings)
    assert load_tokenizer(tmp_path).separators_in_pair == 1


def test_a_vocabulary_that_no_model_reads_yet_gets_bert_s_special_pieces(cased, tmp_path):
    """A file of `tokenizers`' trainers has none; a model that is trained with the vocabulary takes them along."""
    write_template(tmp_path, cased, None, tokenizer_class="PreTrainedTokenizerFast")
    (tmp_path / "config.json").unlink()
    save_huggingface(load_tokenizer(tmp_path), tmp_path / "saved")
    edit_json(tmp_path / "saved" / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    assert_joined_as_by_transformers(tmp_path / "saved", segments=True)


@pytest.mark.parametrize("kind", ["one separator", "none"])
@pytest.mark.parametrize("stated", ["RobertaTokenizer", "DebertaTokenizer", None])
def test_roberta_s_classes_have_special_pieces_of_their_own(stated, kind, english_texts, tmp_path):
    tokenizer = train_byte_bpe(english_texts[:50], vocab_size=500)
    one = template("CLS A SEP", "CLS A SEP B SEP", CLS=0, SEP=2)
    one = json.loads(json.dumps(one).replace("[CLS]", "<s>").replace("[SEP]", "</s>"))
    write_template(tmp_path, tokenizer, one if kind != "none" else None, tokenizer_class=stated, model_type="roberta")
    assert_joined_as_by_transformers(tmp_path)


CHARSMAP = sentencepiece_model_pb2.ModelProto.FromString(
    sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc_cf").serialized_model_proto()
).normalizer_spec.precompiled_charsmap
NORMALIZERS = {
    "none": None,
    "of no class": normalizers.NFKC(),
    "a character map": normalizers.Precompiled(CHARSMAP),
    "a character map in a sequence": normalizers.Sequence([normalizers.Strip(), normalizers.Precompiled(CHARSMAP)]),
}
UNIGRAM_TEXTS = [
    "The Quick ship, the sea!",
    "two  spaces\tand a tab\nand a line ",
    "Caf\u00e9 na\u00efve cafe\u0301 \ufb01 \u00bd \uff21",
    "``quoted'' \u4e2d",
    "",
    " ",
    " \u00a0x\u3000y",
]
BERT_NAMES, ROBERTA_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@pytest.fixture(scope="module")
def unigram_model(english_texts):
    """Unigram's pieces with special pieces of any spelling."""

    @functools.cache
    def train(names):
        backend, unknown = Tokenizer(models.Unigram()), next(name for name in names if "unk" in name.lower())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=400, special_tokens=list(names), unk_token=unknown, show_progress=False
        )
        backend.train_from_iterator(english_texts[:20], trainer)
        return backend.to_str()

    return train


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(
    ("stated", "model_type", "settings"),
    [
        ("AlbertTokenizer", "albert", {"unk_token": "[UNK]", "pad_token": "[PAD]"}),
        ("AlbertTokenizerFast", "albert", {"unk_token": "[UNK]", "do_lower_case": False, "keep_accents": True}),
        (None, "albert", {"unk_token": "[UNK]", "keep_accents": True}),
        ("DebertaV2Tokenizer", "deberta-v2", {}),
        ("DebertaV2TokenizerFast", "bert", {"do_lower_case": True, "split_by_punct": True}),
        (None, "deberta-v2", {"add_prefix_space": False}),
        ("XLMRobertaTokenizer", "roberta", {}),
        ("XLMRobertaTokenizer", "roberta", {"add_prefix_space": False}),
        (None, "xlm-roberta", {}),
        ("CamembertTokenizer", "roberta", {}),
        (None, "camembert", {"add_prefix_space": False}),
    ],
)
def test_steps_of_unigram_are_those_of_its_class(stated, model_type, settings, normalizer, unigram_model, tmp_path):
    names = ROBERTA_NAMES if model_type in ("roberta", "xlm-roberta", "camembert") else BERT_NAMES
    backend = Tokenizer.from_str(unigram_model(names))
    if NORMALIZERS[normalizer] is not None:
        backend.normalizer = NORMALIZERS[normalizer]
    backend.save(str(tmp_path / "tokenizer.json"))
    roberta = {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"} if names == ROBERTA_NAMES else {}
    settings = settings | roberta | ({"tokenizer_class": stated} if stated else {})
    for name, content in (("tokenizer_config", settings), ("config", {"model_type": model_type})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    assert_read_as_by_transformers(tmp_path, UNIGRAM_TEXTS)
    assert_joined_as_by_transformers(tmp_path)
    save_huggingface(load_tokenizer(tmp_path), tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").sha256 == load_tokenizer(tmp_path).sha256
