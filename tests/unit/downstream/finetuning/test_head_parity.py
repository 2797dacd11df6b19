"""Every encoder under every head, both directions: the logits are transformers'."""

import pytest
from support.parity_heads import CASES, export_difference, import_difference

from megabert.downstream.finetuning.model import architecture_of
from megabert.foundation.errors import ConfigError


@pytest.mark.parametrize("direction", [import_difference, export_difference])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.encoder}-{case.task_name}")
def test_logits_equal_transformers(case, direction, tmp_path):
    assert direction(case, tmp_path) < 1e-5


def test_head_that_transformers_has_no_class_for_is_refused():
    with pytest.raises(ConfigError, match=r"no class of it for MultipleChoice.* such as deberta-v2"):
        architecture_of("deberta", "MultipleChoice")
