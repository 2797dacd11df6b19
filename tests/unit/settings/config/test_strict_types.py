"""Every field of every configuration takes values of its own type alone, and numbers within bounds."""

import math
import re
from typing import Any

import pytest

from data_prep.config.build import BuildConfig
from megabert.foundation.errors import ConfigError
from megabert.settings.config.fields import FieldRow, field_table
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers
from megabert.settings.config.run import RunConfig

LEAST: dict[type, dict[str, Any]] = {
    RunConfig: {"phases": [{"steps": 10, "global_batch_size": 4, "learning_rate": 1e-3}]},
    BuildConfig: {"sources": [{"input": "a.txt"}]},
    FinetuneConfig: {"model": "m", "data": "d"},
}
ROWS = [(cls, row) for cls in LEAST for row in field_table(cls)]
NEVER = {
    int: (True, False, "1", "1_0", 1.5, 2.0, 10**30, -(10**30), 10**400, math.nan, math.inf, [1], {}),
    float: (True, "1", "1_0", "nan", 1e30, -1e30, 10**400, math.nan, math.inf, [0.5], {}),
    str: ("", 1, 1.5, True, [], {}, "a\0"),
    bool: (0, 1, "true", "yes", "", None, [], {}),
}
"""Values that no field of a type takes."""


def layer_with(row: FieldRow, value: Any) -> dict[str, Any]:
    """Return a layer that sets one field; of a list its first element."""
    for part in reversed(row.path.split(".")):
        value = {"0" if part == "N" else part: value}
    return value


def refused(row: FieldRow) -> list[Any]:
    """Return what a field must refuse: values that none of its types takes."""
    kinds = [kind for kind in NEVER if kind in row.kinds]
    values = [value for value in NEVER[kinds[0]] if all(value in NEVER[kind] for kind in kinds)] if kinds else [3, ""]
    values = [value for value in values if value is not None or row.default is not None]  # None is an unset field
    if row.is_list:
        length = len(row.default) or 1 if isinstance(row.default, tuple) else 1
        return [[value] * length for value in values]
    return values


@pytest.mark.parametrize(("cls", "row"), ROWS, ids=lambda value: getattr(value, "path", None))
def test_a_field_refuses_values_of_other_types_and_numbers_out_of_bounds(cls, row):
    for value in refused(row):
        with pytest.raises(ConfigError, match=row.path.replace("N", "0").split(".")[-1]):
            merge_layers(cls, LEAST[cls], layer_with(row, value))


@pytest.mark.parametrize(("cls", "row"), ROWS, ids=lambda value: getattr(value, "path", None))
def test_a_field_takes_its_default_back(cls, row):
    if row.default != "required" and row.path != "phases.N.steps":
        default = list(row.default) if isinstance(row.default, tuple) else row.default
        merge_layers(cls, LEAST[cls], layer_with(row, default))


def test_help_names_the_upper_bound_of_every_number():
    numbers = [row for _, row in ROWS if row.kinds & {int, float} and not row.is_list]
    assert len(numbers) > 60
    last_sentence = re.compile(r"(At most|Below)(?!.*\. ).*\.$")
    assert [row.path for row in numbers if not last_sentence.search(row.about)] == []
