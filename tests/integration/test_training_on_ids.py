"""From a DNA sequence to a model: ids, shards, a few steps, an export that transformers loads."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support.runs import Run
from support.soak import in_soak

from data_prep.cli import main as data_prep
from megabert.cli import main
from megabert.data.batch import pack_sequences
from megabert.downstream.export.sources import open_source

ROOT = Path(__file__).resolve().parents[2]
BASES = 60_000


@pytest.fixture(scope="module")
def dna(tmp_path_factory):
    """Return shards of the begin of the bundled sequence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from examples.dna import prepare

        folder = tmp_path_factory.mktemp("dna")
        whole = prepare.read_bases()
        patch.setattr(prepare, "read_bases", lambda: whole[:BASES])
        prepare.main(folder / "ids")
    flags = ["--input", folder / "ids" / "bases.npy", "--format", "ids", "--symbols", folder / "ids" / "symbols.txt"]
    flags += ["--output", folder / "data", "--for", ROOT / "examples" / "dna" / "recipe.yaml", "--lengths", 64, 128]
    flags += ["--validation-share", 0.2, "--dupe-factor", 1, "--workers", 1]
    assert data_prep(["build", *map(str, flags)]) == 0
    return folder / "data"


def export_of(data, folder, **flags):
    """Train for a few steps and export; return the run folder and the export."""
    Run(folder / "run", data, flags=flags).finish_well()
    assert main(["export", str(folder / "run"), "--to", str(folder / "out")]) == 0
    return folder / "run", folder / "out"


@pytest.mark.parametrize("family", ["bert", *in_soak("roberta", "electra")])
def test_families_train_on_ids_and_transformers_gives_their_logits(dna, tmp_path, family):
    run, out = export_of(dna, tmp_path, **{"model.family": family, "phases.1.steps": 2, "phases.0.steps": 2})
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer("ACGT N")["input_ids"] == [2, 5, 6, 7, 8, 1, 3]
    assert "A text is symbols, separated by white space." in (out / "README.md").read_text()
    if family == "electra":
        transformers.AutoModelForPreTraining.from_pretrained(out)
        return
    ids = np.array([2, 5, 6, 4, 8, 7, 4, 3])
    ours, theirs = open_source(str(run), "last").build_model().eval(), transformers.AutoModelForMaskedLM
    with torch.no_grad():
        expected = ours(pack_sequences([ids], mask_id=4), with_logits=True).mlm_logits_MV
        logits = theirs.from_pretrained(out).eval()(torch.from_numpy(ids)[None]).logits[0, ids == 4]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
