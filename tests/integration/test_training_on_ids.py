"""From a DNA sequence to a model: ids, shards, a few steps, an export that transformers loads, bits per masked base."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.runs import TINY, Run

from data_prep.cli import main as data_prep
from megabert.cli import main
from megabert.data.batch import pack_sequences
from megabert.downstream.export.sources import open_source

ROOT = Path(__file__).resolve().parents[2]
BASES = 60_000


@pytest.fixture(scope="module")
def dna(tmp_path_factory):
    """Return the benchmark, and shards of the begin of the bundled sequence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from benchmarks import dna
        from examples.dna import prepare

        folder = tmp_path_factory.mktemp("dna")
        whole = prepare.read_bases()
        patch.setattr(prepare, "read_bases", lambda: whole[:BASES])
        prepare.main(folder / "ids")
    flags = ["--input", folder / "ids" / "bases.npy", "--format", "ids", "--symbols", folder / "ids" / "symbols.txt"]
    flags += ["--output", folder / "data", "--for", ROOT / "examples" / "dna" / "recipe.yaml", "--lengths", 64, 128]
    flags += ["--validation-share", 0.2, "--dupe-factor", 1, "--workers", 1]
    assert data_prep(["build", *map(str, flags)]) == 0
    return dna, folder / "data"


def export_of(data, folder, **flags):
    """Train for a few steps and export; return the run folder and the export."""
    Run(folder / "run", data, flags=flags).finish_well()
    assert main(["export", str(folder / "run"), "--to", str(folder / "out")]) == 0
    return folder / "run", folder / "out"


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_families_train_on_ids_and_transformers_gives_their_logits(dna, tmp_path, family):
    transformers = pytest.importorskip("transformers")
    run, out = export_of(dna[1], tmp_path, **{"model.family": family, "phases.1.steps": 2, "phases.0.steps": 2})
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


def test_bits_per_masked_base_come_out_of_a_run(dna, tmp_path):
    pytest.importorskip("transformers")
    benchmark, data = dna
    bases, is_asked = benchmark.questions(data)
    assert bases.shape == (6 * (2000 // 126), 126)
    sequence = "".join("ACGT"[base] for base in bases[0])
    with (ROOT / "examples" / "dna" / "escherichia_coli_536.bin").open("rb") as file:
        whole = "".join("ACGT"[byte >> shift & 3] for byte in file.read(BASES // 4) for shift in (6, 4, 2, 0))
    assert sequence in whole
    one_sided, two_sided = benchmark.markov_bits(
        benchmark.markov(benchmark.documents(data, "train"), 2), bases, is_asked
    )
    assert two_sided < one_sided < 2.0
    recipe = str(ROOT / "examples" / "dna" / "recipe.yaml")
    own = {**dict.fromkeys(TINY), "phases.0.steps": 40, "phases.0.global_batch_size": 8, "micro_batch_tokens": 2048}
    run = Run(tmp_path / "run", data, recipe=recipe, flags=own)
    run.finish_well()
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "out")]) == 0
    assert 1.9 < benchmark.model_bits(tmp_path / "out", bases, is_asked) < 2.05


def test_two_sided_chains_are_conditional_probabilities(dna):
    benchmark, order = dna[0], 2
    generator = np.random.default_rng(0)
    log2 = np.log2(generator.dirichlet(np.ones(4), 4**order))
    bases = generator.integers(0, 4, (1, 9))
    is_asked = np.zeros(bases.shape, bool)
    is_asked[0, 4] = True
    joint = np.zeros(4)
    for candidate in range(4):
        chain = [*bases[0, :4].tolist(), candidate, *bases[0, 5:].tolist()]
        joint[candidate] = 2 ** sum(log2[chain[i - 2] * 4 + chain[i - 1], chain[i]] for i in range(2, 9))
    one_sided, two_sided = benchmark.markov_bits(log2, bases, is_asked)
    truth = bases[0, 4]
    assert two_sided == pytest.approx(-np.log2(joint[truth] / joint.sum()))
    assert one_sided == pytest.approx(-log2[bases[0, 2] * 4 + bases[0, 3], truth])
