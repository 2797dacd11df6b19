"""A function that takes a path takes a str as well, if it says so."""

import pytest

from megabert.downstream.export.huggingface import read_huggingface
from megabert.downstream.finetuning.saved_model import read_saved_model
from megabert.foundation.errors import MegabertError


@pytest.mark.parametrize("function", [read_huggingface, read_saved_model])
def test_a_str_is_a_path(function, tmp_path):
    with pytest.raises(MegabertError, match="nowhere"):
        function(str(tmp_path / "nowhere"))
