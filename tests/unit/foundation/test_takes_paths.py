"""A function with `takes_paths` can be called from Python with a str."""

import pytest

from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.foundation.errors import MegabertError


@pytest.mark.parametrize("function", [find_checkpoint, read_masters])
def test_a_str_is_a_path(function, tmp_path):
    with pytest.raises(MegabertError, match="nowhere"):
        function(str(tmp_path / "nowhere"))
