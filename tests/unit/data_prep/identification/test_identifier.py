"""Identification of languages: which part of a text is read, what the answers are, and what is refused."""

import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from py3langid import langid
from support.fasttext_models import WORDS, lid_176, model_bytes

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.identification import identifier
from data_prep.identification.feature_loops import LONGEST_FEATURE, WEIGHT_UNIT, find_most_likely
from megabert.foundation.errors import ConfigError, DataError

SCRIPTS = Path(__file__).parents[3] / "assets" / "scripts.tsv"
TEXTS = {
    "en": "The whale swam away over the sea, and nobody saw it again.",
    "de": "Der Wal schwamm davon, und niemand hat ihn je wieder gesehen.",
    "ko": "\uc548\ub155\ud558\uc138\uc694. \uc624\ub298\uc740 \ub0a0\uc528\uac00 \uc88b\uc2b5\ub2c8\ub2e4.",
    "zh": "\u9019\u9996\u6b4c\u5f88\u597d\u807d\uff0c\u6211\u5011\u6bcf\u5929\u90fd\u5531\u3002",
    "ja": "\u6628\u65e5\u306f\u53cb\u9054\u3068\u4e00\u7dd2\u306b\u6620\u753b\u3092\u898b\u307e\u3057\u305f\u3002",
}


def config(*, model=None, rules=(), languages=(), language="auto", **source):
    clean = CleanConfig(rules=rules, languages=languages)
    sources = (SourceConfig(input="a.jsonl", **source),)
    return BuildConfig(sources=sources, clean=clean, language=language, language_model=model)


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    path = tmp_path / "lid.bin"
    path.write_bytes(model_bytes())
    return str(path)


def test_compiled_loops_give_the_answers_of_py3langid():
    (labels, label_of), original = identifier._compiled_py3langid(), langid._get_identifier()
    pages = [*TEXTS.values(), *SCRIPTS.read_text("utf-8").splitlines(), "", "!", "x", "\U0001f600", TEXTS["en"].upper()]
    texts = [page[start : start + size] for page in pages for size in (8, 1000) for start in (0, 9)]
    for text in [*texts, *texts[::-1]]:  # nothing is left of a text when the next one is read
        assert label_of(text) == original.classify(text)[0], text
    assert labels == original.labels


def test_features_are_as_short_as_the_loop_takes_them_for():
    own = langid._get_identifier()
    rows, moves = np.asarray(own.tk_row), np.asarray(own.tk_nextmove).reshape(-1, 256)
    known, last = np.arange(len(rows)) == 0, np.array([0])
    for _ in range(LONGEST_FEATURE):
        following = np.unique(moves[np.unique(rows[last])])
        last = following[~known[following]]
        known[last] = True
    assert known.all()


def test_weights_fit_into_16_bits():
    assert np.abs(langid._get_identifier().nb_ptc / np.float32(WEIGHT_UNIT)).max() < 2**15


@pytest.mark.parametrize(("lead", "answer"), [(0, -1), (1, -1), (3, 0), (-1, -1), (-3, 1)])
def test_scores_that_rounding_could_reverse_give_no_answer(lead, answer):
    # Every byte is the one feature, whose score is ahead by so many units in the first of three languages.
    weights = np.array([[lead - 900, -900, -1000]], np.int16)
    model = np.zeros(1, np.uint16), np.zeros(256, np.uint32), np.zeros(1, np.int32), weights, np.zeros(3, np.int64)
    logs, counts = np.array([0, 10**6], np.int32), np.zeros(1, np.int32)
    for _ in range(2):
        assert find_most_likely(np.frombuffer(b"x" * 40, np.uint8), *model, logs, counts) == answer
        assert not counts.any()


@pytest.mark.parametrize("language", TEXTS)
def test_lid_176_identifies_documents(language):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    assert identifier.identifier_of(str(lid_176())).language_of([TEXTS[language]]) == language


@pytest.mark.parametrize(("form", "buckets"), [("{}", 0), ("{}_Latn", 50)])
def test_any_model_of_languages_identifies_documents(tmp_path, form, buckets):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    path = tmp_path / "lid.bin"
    path.write_bytes(model_bytes(form=form, buckets=buckets))
    own = identifier.identifier_of(str(path))
    assert {code: own.language_of([" ".join(words)]) for code, words in WORDS.items()} == {code: code for code in WORDS}
    assert own.language_of(["der\nwal", "schwamm"]) == "de"  # it reads one line
    assert own.language_of(["xyzzy"]) == "und" or buckets  # the model knows no word of it
    assert own.codes == {*WORDS, "und"}


@pytest.mark.parametrize("text", ["", "1 2 3", "... !!!", "\u3002"])
def test_language_of_text_without_letters_is_undetermined(text):
    assert identifier.identifier_of(None).language_of([text]) == "und"


def test_only_the_beginning_is_read_and_once():
    asked = []
    own = identifier.Identifier(["en"], lambda text: asked.append(text) or "en")
    paragraphs = ["a" * 600, "b" * 600, "c" * 600]
    assert [own.language_of(paragraphs), own.language_of([*paragraphs, "d"])] == ["en", "en"]
    assert asked == [("a" * 600 + "\n" + "b" * 600)[: identifier.LANGUAGE_CHARACTERS]]
    own.language_of(["d"])
    assert len(asked) == 2


def test_rule_keeps_the_languages_of_a_source():
    def kept(**settings):
        keeps = identifier.keeps_language(config(rules=("language",), **settings), 0)
        return [language for language in TEXTS if keeps([TEXTS[language]])]

    assert kept(languages=("en", "ko")) == ["en", "ko"]
    assert kept(language="de") == ["de"]  # the build's
    assert kept(language="de", languages=("en",)) == ["en"]  # a list says more than a default
    own = BuildConfig(
        sources=(SourceConfig(input="a", language="zh-hant"), SourceConfig(input="b", language="auto")),
        clean=CleanConfig(rules=("language",), languages=("en", "ja")),
    )
    tests = [identifier.keeps_language(own, source) for source in (0, 1)]
    assert [[name for name in TEXTS if test([TEXTS[name]])] for test in tests] == [["zh"], ["en", "ja"]]


def test_rule_keeps_cantonese_and_drops_mandarin(tmp_path):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    path = tmp_path / "lid.bin"
    path.write_bytes(model_bytes({"yue": ["\u5514\u4fc2"], "zh": ["\u4e0d\u662f"]}))
    own = config(model=str(path), rules=("language",), language="zh-yue")
    identifier.require_identifier(own)
    keeps = identifier.keeps_language(own, 0)
    assert [keeps([text]) for text in ("\u5514\u4fc2", "\u4e0d\u662f")] == [True, False]


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch, tmp_path):
    identifier._of_py3langid.cache_clear()
    monkeypatch.setattr(identifier, "installed_version", lambda name: "")
    with pytest.raises(ConfigError, match=r"needs the package py3langid.*pip install 'megabert\[language\]'"):
        identifier.require_identifier(config())
    path = tmp_path / "lid.bin"
    path.write_bytes(model_bytes())
    with pytest.raises(ConfigError, match=r"lid\.bin needs .* fasttext-predict.*pip install 'megabert\[languages\]'"):
        identifier.require_identifier(config(model=str(path)))


@pytest.mark.parametrize(
    ("labels", "others"),
    [
        ("positive negative", "2 of its 2 labels (positive, negative)"),
        ("pos neg", "2 of its 2 labels (pos, neg)"),  # as short as codes
        ("ham spam", "2 of its 2 labels (ham, spam)"),
        ("no yes", "1 of its 2 labels (yes)"),  # Norwegian
        ("en ceb arz bat-smg other", ""),  # lid.176
        ("eng_Latn zho_Hans dyu_Latn kbp_Latn", ""),  # GlotLID, OpenLID
        ("eng deu xyz", ""),
    ],
)
def test_model_of_something_else_than_languages_is_refused(tmp_path, monkeypatch, labels, others):
    monkeypatch.setattr(identifier, "installed_version", lambda name: "1")
    path = tmp_path / "a.bin"
    path.write_bytes(model_bytes({label: [f"word{label}"] for label in labels.split()}))
    refusal = pytest.raises(DataError, match=rf"{re.escape(others)} are no codes of languages such as .*\. Name a")
    with refusal if others else nullcontext():
        identifier.require_identifier(config(model=str(path)))


def test_model_that_changed_is_refused(model):
    identifier.identifier_of(model)
    with pytest.raises(DataError, match="changed since the build began"):
        identifier.identifier_of(model, "0" * 64)


def test_weights_that_are_no_numbers_are_refused_with_the_first_answer(tmp_path):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    path = tmp_path / "lid.bin"
    path.write_bytes(model_bytes(weight=float("nan")))
    says = rf"^language_model={path}: its weights are damaged \(.*NaN.*\)\. Name a model file"
    with pytest.raises(DataError, match=says):
        identifier.identifier_of(str(path)).language_of(["der Wal"])


def test_languages_that_cannot_be_identified_are_refused(model):
    identifier.require_identifier(config(model=model, rules=("language",), languages=("dyu", "und")))
    with pytest.raises(ConfigError, match=r"keeps fr, which .*lid\.bin cannot identify.*It knows 5 languages"):
        identifier.require_identifier(config(model=model, rules=("language",), languages=("en", "fr")))
    with pytest.raises(ConfigError, match="keeps ng, which py3langid cannot identify"):
        identifier.require_identifier(config(rules=("language",), language="ng"))
    identifier.require_identifier(config(language="ng"))  # nothing is identified


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rules": ("language",)}, "is of language auto, but clean.languages names none"),
        ({"language": "en", "model": "lid.bin"}, "language_model='lid.bin': identifies nothing"),
        ({"language": "en", "format": "ids"}, ""),
        ({"format": "ids"}, "language=auto: ids have no text"),
        ({"language": "en", "source": "deu"}, "did you mean de?"),
    ],
    ids=str,
)
def test_settings_that_identify_nothing_are_refused(settings, says):
    source = settings.pop("source", None)
    with pytest.raises(ValueError, match=says or "there is no vocabulary"):
        config(**settings) if source is None else SourceConfig(input="a", language=source)
