"""YAML of users: numbers that mean what they look like, and bounds."""

import pytest
import yaml

from megabert.settings.config.loading import SHIPPED, read_yaml
from megabert.settings.config.yaml_text import parse_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100", 100),
        ("-7", -7),
        ("0x1F", 31),
        ("1.5e-4", 1.5e-4),
        (".5", 0.5),
        ("1e-4", 1e-4),  # YAML 1.1: a text
        ("50e9", 50_000_000_000),
        ("1.7E+12", 1_700_000_000_000),
        ("50.0", 50.0),
        ("0100", "0100"),  # YAML 1.1: 64, YAML 1.2: 100
        ("1:30", "1:30"),  # 90
        ("2001-01-01", "2001-01-01"),  # a date
        ("1_000", "1_000"),
        ("yes", True),
        ("~", None),
        ("\u00b2", "\u00b2"),
    ],
)
def test_words_are_read_as_yaml_1_2_reads_them(text, value):
    assert parse_yaml(f"a: {text}") == {"a": value}


@pytest.mark.parametrize("text", ["0100", "1e5", "50e9", "1_0", "12", "no", "2001-01-01", "1:30", "0x1F", "~", "x: y"])
def test_text_that_looks_like_something_else_is_written_so_that_it_reads_back(text):
    assert parse_yaml(write_yaml({"a": text})) == {"a": text}


@pytest.mark.parametrize("path", sorted(SHIPPED["recipe"][0].glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_read_as_pyyaml_reads_them(path):
    assert read_yaml(path) == yaml.safe_load(path.read_text())


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: a is there twice (also in line 1)"),
        ("a: !!python/object/apply:os.system ['true']", "the tag tag:yaml.org,2002:python"),
        ("a: &a [*a]", "inside the value that it repeats"),
        ("[" * 3000 + "]" * 3000, "nested more than 50 deep"),
        (LAUGHS, "more than 100,000 values"),
        ("? [1]\n: 2", "a key is a list"),
        ("a: 1\n---\nb: 2", "another document"),
    ],
)
def test_what_no_configuration_needs_is_refused_with_its_line(text, says):
    with pytest.raises(ValueError, match="line") as refusal:
        parse_yaml(text)
    assert says in str(refusal.value)


def test_merge_keys_may_repeat_what_they_override():
    assert parse_yaml("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")["b"] == {"x": 1, "y": 3}


def test_keys_are_text():
    text = "no: X\nfalse: Y\n~: Z\n0: a\n0x0: b\n"
    assert parse_yaml(text) == {"no": "X", "false": "Y", "~": "Z", "0": "a", "0x0": "b"}
