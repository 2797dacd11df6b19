"""JSON of ours is read with its types checked; damage ends in a sentence."""

import json
from dataclasses import dataclass

import pytest

from megabert.errors import CheckpointError, DataError
from megabert.schema import parse_json, read_json, to_json


@dataclass(frozen=True)
class Part:
    name: str
    start: int


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    share: float = 0.5


WHOLE = Whole((Part("a", 0), Part("b", 7)), 0.25)


def test_a_value_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(to_json(WHOLE)))
    assert read_json(path, Whole, remedy="Write it again.") == WHOLE


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ('{"parts": [{"name": "a", "start": "0"}]}', "parts.0.start"),
        ('{"parts": [{"name": "a"}]}', "parts.0.start"),
        ('{"parts": null}', "parts"),
        ("[]", "an object"),
        ('{"parts": [', "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        ("[" * 100_000, "recursion"),
        ('{"parts": [{"name": "a", "start": ' + "9" * 6000 + "}]}", "out of range"),
    ],
)
def test_damage_names_file_field_and_remedy(tmp_path, content, field):
    path = tmp_path / "whole.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        read_json(path, Whole, remedy="Write it again.")
    message = str(caught.value)
    assert str(path) in message
    assert field in message
    assert message.endswith("Write it again.")


def test_a_missing_file_raises_the_error_that_was_asked_for(tmp_path):
    with pytest.raises(CheckpointError, match=r"whole\.json: cannot be read .*Use another step"):
        read_json(tmp_path / "whole.json", Whole, remedy="Use another step.", error=CheckpointError)


def test_text_from_elsewhere_is_named_by_its_source():
    with pytest.raises(DataError, match="shard 3"):
        parse_json("{}", Whole, where="shard 3", remedy="Build it again.")
