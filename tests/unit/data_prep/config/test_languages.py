import pytest

from data_prep.config import languages
from data_prep.extract.sentences import splitter_code


@pytest.mark.parametrize(
    ("label", "code"),
    [
        *(("de", "de"), ("deu", "de"), ("deu_Latn", "de"), ("zho_Hans", "zh"), ("zh-Hant", "zh"), ("arb_Arab", "ar")),
        ("als", "als"),  # Alemannic, as Wikipedia and lid.176 have it
        ("als_Latn", "sq"),  # Tosk Albanian, as ISO 639-3 and GlotLID have it
        *(("nob_Latn", "no"), ("nn", "nn"), ("yue", "yue"), ("bat-smg", "bat-smg"), ("dyu_Latn", "dyu")),
        *(("positive", None), ("1", None), ("", None), ("DE", None)),
    ],
)
def test_labels_of_models_become_codes(label, code):
    assert languages.code_of_label(label) == code


def test_codes_of_three_letters_stand_for_known_codes_of_two():
    assert set(languages.TWO_OF_THREE.values()) <= languages.ISO_639_1
    assert len(languages.TWO_OF_THREE) > 200
    assert {len(code) for code in languages.TWO_OF_THREE} == {3}


def test_languages_of_unknown_codes_are_cut_as_english():
    assert [splitter_code(code) for code in ("de", "yue", "dyu", "und", "zxx")] == ["de", "yue", "en", "en", "en"]


def test_variants_are_identified_as_their_language():
    assert [languages.identified_code(code) for code in ("pt-br", "nb", "bat-smg", "en")] == [
        "pt",
        "no",
        "bat-smg",
        "en",
    ]


def test_languages_with_the_prefix_of_another_are_identified_as_themselves():
    codes = ("zh-yue", "zh-min-nan", "zh-classical", "simple", "zh-hant", "zh-tw")
    assert [languages.identified_code(code) for code in codes] == ["yue", "nan", "lzh", "en", "zh", "zh"]


def test_code_of_three_letters_is_refused_if_there_is_one_of_two():
    assert languages.require_identifiable("dyu") == "dyu"
    for code, require in (
        ("deu", languages.require_identifiable),
        ("auto", languages.require_identifiable),
        ("auto", languages.require_language),
    ):
        with pytest.raises(ValueError, match="is no language code"):
            require(code)


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        *(("de-DE", "de"), ("swe", "sv"), ("jpn_Jpan", "ja"), ("english", "en"), ("Chinese", "zh"), ("ger", "de")),
        *(("swedish", "sv"), ("estonian", "et"), ("croatian", "hr"), ("serbian", "sr"), ("slovak", "sk")),
    ],
)
def test_unknown_code_is_refused_with_the_one_that_is_likely_meant(code, meant):
    with pytest.raises(ValueError, match=rf"{code}' is no language code .*; did you mean {meant}\?"):
        languages.require_language(code)


@pytest.mark.parametrize("code", ["swiss", "enochian", "klingon"])
def test_unknown_code_that_is_no_common_name_is_refused_without_a_guess(code):
    with pytest.raises(ValueError, match=rf"^'{code}' is no language code .* of a Wikipedia, such as en, de or zh$"):
        languages.require_language(code)


def test_names_of_languages_stand_for_known_codes():
    assert set(languages.CODE_OF_NAME.values()) <= languages.KNOWN
    assert not languages.CODE_OF_NAME.keys() & (languages.KNOWN | languages.TWO_OF_THREE.keys())
