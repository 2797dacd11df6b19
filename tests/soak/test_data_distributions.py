"""The whole bundled corpora: google's form against its oracle, balanced labels, every invariant of every objective."""

from pathlib import Path

import numpy as np
import pytest
from unit.data_prep.instances.google_oracle import sample_built, sample_oracle, z_scores

from data_prep.checks.verify import verify
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards

CORPORA = Path(__file__).parents[2] / "examples" / "corpus"
PASSES = 60

pytestmark = pytest.mark.soak


def make(corpus, output, **changes):
    source = SourceConfig(input=str(CORPORA / f"{corpus}.jsonl"))
    language = "ko" if corpus == "korean" else "en"
    config = BuildConfig(sources=(source,), language=language, vocab_size=8192, validation_share=0.05, **changes)
    return build_shards(config, output, Executor())


@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("corpus", ["public_domain", "korean"])
def test_fast_google_form_has_the_oracles_distribution(corpus, length, tmp_path):
    folder = make(corpus, tmp_path / "out", lengths=(length,), dupe_factor=1).folder / "documents"
    scores = z_scores(sample_oracle(folder, length, PASSES), sample_built(folder, length, PASSES), resamples=2000)
    print(corpus, length, {name: round(float(score), 2) for name, score in scores.items()})
    assert max(map(abs, scores.values())) < 4, scores


@pytest.mark.parametrize("corpus", ["public_domain", "korean"])
def test_balanced_labels_are_even_and_do_not_show_in_length(corpus, tmp_path):
    built = make(corpus, tmp_path / "out", dupe_factor=40)
    for length, manifest in built.manifests.items():
        counts = manifest.statistics["instances"]["train"]
        rows, ones, tokens = counts["rows"], counts["random_next"], counts["random_next_tokens"]
        difference = tokens / ones - (counts["tokens"] - tokens) / (rows - ones)
        print(corpus, length, rows, ones / rows, difference)
        assert abs(ones / rows - 0.5) < 0.005
        assert abs(difference) < 1


@pytest.mark.parametrize(
    "changes",
    [{}, {"pairing": "google"}, {"objective": "sop"}, {"objective": "none"}, {"masking": "dynamic"}],
    ids=lambda changes: "-".join(changes.values()) or "balanced",
)
@pytest.mark.parametrize("corpus", ["public_domain", "korean"])
def test_every_instance_of_every_objective_is_sound(corpus, changes, tmp_path):
    built = make(corpus, tmp_path / "out", **changes)
    for length, manifest in built.manifests.items():
        verdict = verify(built.folder / "instances" / str(length), Executor(), use_text=True)
        assert verdict.problems == []
        if "masked_tokens" in manifest.statistics["instances"]["train"] and manifest.metadata.masking == "static":
            check_masks(manifest.statistics["instances"]["train"])


def check_masks(counts):
    """80/10/10 within three standard deviations; a random piece is the original once in V draws."""
    masked = counts["masked_tokens"]
    for found, share in ((counts["shown_as_mask"], 0.8), (counts["shown_as_original"], 0.1)):
        assert abs(found / masked - share) < 3 * np.sqrt(share * (1 - share) / masked) + 2 / 8192
