"""Flags that set fields of a configuration."""

from collections import deque

import pytest

from data_prep.config.build import BuildConfig
from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.flags import nest, take_flag
from megabert.settings.command_line.parser import Parser
from megabert.settings.config.fields import field_table
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.run import RunConfig


def read(cls: type, *words: str) -> dict:
    rest, flags = deque(words), {}
    while rest:
        path, flags[path] = take_flag(rest, {row.path: row for row in field_table(cls)})
    return nest(flags)


@pytest.mark.parametrize("flag", ["--optimizer.weight_decay", "--optimizer.weight-decay"])
@pytest.mark.parametrize("form", ["{} 0.02", "{}=0.02"])
def test_hyphens_and_underscores_are_both_read(flag, form):
    assert read(RunConfig, *form.format(flag).split()) == {"optimizer": {"weight_decay": 0.02}}


def test_names_of_sources_keep_their_hyphens():
    words = ["--data.sources.en-us", "no-such_folder", "--phases.0.mixture.en-us=1", "--optimizer.options.a-b=2"]
    assert read(RunConfig, *words) == {
        "data": {"sources": {"en-us": "no-such_folder"}},
        "phases": {"0": {"mixture": {"en-us": 1}}},
        "optimizer": {"options": {"a_b": 2}},
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--activation-checkpointing"], True),
        (["--activation_checkpointing", "true"], True),
        (["--activation-checkpointing=false"], False),
        (["--activation-checkpointing", "no"], False),
        (["--no-activation-checkpointing"], False),
        (["--no_activation_checkpointing"], False),
    ],
)
def test_booleans_are_switches_and_still_take_a_value(words, expected):
    assert read(RunConfig, *words, "--seed", "3") == {"activation_checkpointing": expected, "seed": 3}


def test_switch_of_a_section_is_negated_before_its_path():
    assert read(RunConfig, "--no-model.share-att-key") == {"model": {"share_att_key": False}}


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["128"], [128]), (["128", "512"], [128, 512]), (["[128, 512]"], [128, 512]), (["null"], None)],
)
def test_lists_are_words_or_brackets(words, expected):
    assert read(BuildConfig, "--max-predictions-per-seq", *words, "--seed", "3") == {
        "max_predictions_per_seq": expected,
        "seed": 3,
    }


def test_text_is_taken_as_it_is_written():
    assert read(BuildConfig, "--language", "no") == {"language": "no"}
    assert read(BuildConfig, "--tokenizer", "a #b: [c") == {"tokenizer": "a #b: [c"}
    assert read(BuildConfig, "--tokenizer", "null") == {"tokenizer": None}
    assert read(BuildConfig, "--tokenizer", '"null"') == {"tokenizer": "null"}
    assert read(BuildConfig, "--clean.languages", "no", "ja") == {"clean": {"languages": ["no", "ja"]}}
    assert read(FinetuneConfig, "--null-threshold", "auto", "--epochs", "2") == {"null_threshold": "auto", "epochs": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed"], "a value is missing"),
        (["--seed", "--name", "x"], "a value is missing"),
        (["--seed", "[1"], "is no YAML value"),
        (["--micro-batch-tokns"], "no such flag; did you mean --micro-batch-tokens[?]$"),
        (["--micro-batch-tokns=9", "--xyzzy"], "--xyzzy: no such flag; see --help-all$"),
        (["--a", "1", "--a.b", "2"], "a value of its own"),
    ],
)
def test_malformed_flags_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        read(RunConfig, *words)


@pytest.mark.parametrize(
    ("metavar", "flag", "says"),
    [("FILE", "data", "FILE"), ("FILE", "input", "FILE"), ("FILE", "file", "FILE"), ("RUN", "resume", "RUN")],
)
def test_a_flag_for_an_argument_without_one_is_answered_by_it(metavar, flag, says):
    parser = Parser("megabert look")
    parser.add_argument("file" if metavar == "FILE" else "run_dir", metavar=metavar)
    with pytest.raises(ConfigError, match=f"^--{flag}: no such flag; {says} is written without one$"):
        parser.parse([f"--{flag}", "x"])


def test_unknown_fields_are_left_to_the_configuration_which_names_all_problems_at_once():
    assert read(RunConfig, "--seeed", "1", "--phases.0.stepz=2") == {"seeed": 1, "phases": {"0": {"stepz": 2}}}
