"""The whole bundled corpora: balanced labels are even and do not show in length."""

import pytest
from unit.data_prep.conftest import bundled

from data_prep.config.build import BuildConfig
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("corpus", ["public_domain", "korean"])
def test_balanced_labels_are_even_and_do_not_show_in_length(corpus, tmp_path):
    built = build_shards(BuildConfig(**bundled(corpus, dupe_factor=40)), tmp_path / "out", Executor())
    for length, manifest in built.manifests.items():
        counts = manifest.statistics["instances"]["train"]
        rows, ones, tokens = counts["rows"], counts["random_next"], counts["random_next_tokens"]
        difference = tokens / ones - (counts["tokens"] - tokens) / (rows - ones)
        print(corpus, length, rows, ones / rows, difference)
        assert abs(ones / rows - 0.5) < 0.005
        assert abs(difference) < 1
