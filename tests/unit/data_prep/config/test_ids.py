"""Settings that ids cannot have are refused with the reason, and so are settings of ids for text."""

import pytest

from data_prep.config.build import BuildConfig
from megabert.foundation.errors import ConfigError
from megabert.settings.config.loading import merge_layers

SIZE = {"vocab_size": 69, "special_ids": [0, 1, 2, 3, 4], "objective": "none"}


def config_of(*sources, **settings):
    named = [{"input": f"{number}.jsonl", "format": "ids", **source} for number, source in enumerate(sources or ({},))]
    return merge_layers(BuildConfig, {"sources": named, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        SIZE,
        {**SIZE, "clean": {"rules": ["duplicate_documents"]}, "mask_unit": "span"},
        {"symbols": "symbols.txt", "objective": "none"},
        {"tokenizer": "folder", "objective": "none", "mask_unit": "whole_word"},
    ],
)
def test_usable_settings_are_taken(settings):
    assert config_of(**settings).holds_ids


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_two_fields_make_pairs(objective):
    assert config_of({"second_field": "b"}, **{**SIZE, "objective": objective}).sources[0].key == "input_ids"


@pytest.mark.parametrize(
    ("sources", "settings", "message"),
    [
        ([{}, {"format": "jsonl"}], SIZE, "some are of format ids and some are text"),
        ([{"format": "text"}], {"symbols": "s.txt"}, "symbols: describes ids, and the sources are text"),
        ([{"format": "text"}], {"special_ids": [0, 1, 2, 3, 4]}, "special_ids: describes ids"),
        ([{"format": "text", "second_field": "b"}], {}, "second_field='b' is for pairs of ids"),
        ([{}], {"objective": "none"}, "format ids: there is no vocabulary"),
        ([{}], {**SIZE, "tokenizer": "folder"}, "tokenizer: says all ids"),
        ([{}], {**SIZE, "special_ids": [0, 1, 2, 3, 3]}, "two of them are equal"),
        ([{}], {**SIZE, "vocab_size": 64, "special_ids": [0, 1, 2, 3, 64]}, "64 is not below vocab_size=64"),
        ([{}], {**SIZE, "objective": "nsp"}, "ids have no sentences to pair; name the list of B"),
        ([{}], {**SIZE, "objective": "sop"}, "ids have no sentences to pair"),
        ([{"second_field": "b"}], SIZE, "objective=none writes single segments"),
        ([{}], {**SIZE, "mask_unit": "whole_word"}, "ids have no words"),
        ([{}], {**SIZE, "clean": {"rules": ["length"]}}, "clean.rules=length: reads characters, words or lines"),
        ([{}], {**SIZE, "clean": {"rules": ["mojibake"]}}, "clean.rules=mojibake: reads characters"),
    ],
)
def test_unusable_settings_are_refused(sources, settings, message):
    with pytest.raises(ConfigError, match=message):
        config_of(*sources, **settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "--output", "out", "--language", "de"], "--language has no effect: it needs sources.0.format"),
        (["build", "--output", "out", "--uncased", "true"], "--uncased has no effect"),
        (["vocab", "--output", "out"], "vocab trains a vocabulary on text, and format ids has its own"),
        (["stats", "--dry-run"], "stats --dry-run tries rules that read text, and format ids has none"),
        (["estimate", "--measure"], "--measure times a build from text"),
    ],
)
def test_commands_about_text_say_why_not(tmp_path, monkeypatch, megabert_data, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("[5, 6]\n")
    command, *flags = words
    own = ["--input", "a.jsonl", "--format", "ids", "--symbols", "s.txt"]
    objective = [] if command in ("vocab", "stats") else ["--objective", "none"]
    if not objective:  # which have no flag for it
        (tmp_path / "c.yaml").write_text("objective: none\n")
        objective = ["--config", "c.yaml"]
    assert message in megabert_data(command, *own, *objective, *flags, code=2).err
