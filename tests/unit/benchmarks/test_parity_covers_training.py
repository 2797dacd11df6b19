"""Every kernel that training on a card launches is compared with float64 by the card's parity part.

A kernel is compiled for each set of dtypes, absent tensors and constants (``IS_RUNNING``, tile sizes), and each of
these variants is a program of its own. Launches are recorded on meta tensors: nothing runs, and no GPU is needed.
"""

import functools
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="pip install 'triton>=3.6'")

from support.recorded_launches import META, recording

from benchmarks.gpu import parity
from benchmarks.gpu.batches import random_batch
from benchmarks.gpu.sizes import GPU
from benchmarks.gpu.training import MegabertStep, model_config
from megabert.data.batch import probe_batch
from megabert.models.build import build_model
from megabert.ops.proof.problem import values_and_gradients
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig


def on_meta(patch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let problems be made of meta tensors, and return the generator to make them with."""
    for name in ("randn", "rand", "randint"):
        original = getattr(torch, name)
        patch.setattr(torch, name, lambda *shape, generator=None, _of=original, **kind: _of(*shape, **kind))
    return SimpleNamespace(device=META, seed=lambda: 0)


def launched_by(cases_of) -> set[tuple]:
    """Return the variants that the problems of a part launch, each in its dtype."""
    with recording() as variants, pytest.MonkeyPatch.context() as patch:
        for problem, dtype in cases_of(on_meta(patch)):
            rounded = {name: tensor.to(dtype) for name, tensor in problem.tensors.items()}
            values_and_gradients(functools.partial(problem.run, backend="triton"), rounded)
    return variants


@pytest.fixture(scope="module")
def compared() -> set[tuple]:
    """Return the variants that `parity` launches."""
    return launched_by(lambda generator: [case[1:] for case in parity.cases(GPU, generator)])


def launch_graph_step(length: int, *, in_fp8: bool = False) -> None:
    """Launch what a step of `training` launches, with two layers: the last is another one than those before it."""
    config = model_config(GPU, num_hidden_layers=2)
    batch = random_batch(GPU.tokens, length, GPU.vocabulary, 0)
    MegabertStep(config, batch, backend="triton", device=META, dtype=torch.bfloat16, in_fp8=in_fp8).eager()


def launch_family(dtype: torch.dtype, length: int, *, in_fp8: bool = False, **sizes) -> None:
    """Launch what a micro-step of ``megabert pretrain`` and its validation launch, with two layers."""
    config = ModelConfig(**{"vocab_size": GPU.vocabulary, "num_hidden_layers": 2, **sizes})
    ops = OpsConfig(**dict.fromkeys(("layer_norm", "attention", "bias_gelu", "cross_entropy"), "triton"))
    with META:
        model = build_model(config, ops=ops, in_fp8=in_fp8).to(dtype)
    batch = probe_batch(tokens=GPU.tokens, length=length).to(META)
    output = model(batch)
    (output.mlm_loss_sum + output.nsp_loss_sum).backward()
    with torch.no_grad():
        model.eval()(batch)


LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
MODERN = {"family": "modernbert", "vocab_size": 50_368, "max_position_embeddings": 8192}
MODERN_BASE, MODERN_LARGE = (
    {**BASE, **MODERN, "intermediate_size": 1152},
    {**LARGE, **MODERN, "intermediate_size": 2624},
)
DEBERTA_3 = {**BASE, "family": "deberta-v2", "position_buckets": 256}
TRAINED = {
    "BERT-Large, 128, as a graph": lambda: launch_graph_step(128),
    "BERT-Large, 512, as a graph": lambda: launch_graph_step(512),
    "BERT-Large, 512, in fp8 as a graph": lambda: launch_graph_step(512, in_fp8=True),
    "BERT-Large, 128": lambda: launch_family(torch.bfloat16, 128, **LARGE),
    "BERT-Large, 512": lambda: launch_family(torch.bfloat16, 512, **LARGE),
    "BERT-base, 512": lambda: launch_family(torch.bfloat16, 512, **BASE),
    "DeBERTa-base, 128": lambda: launch_family(torch.bfloat16, 128, **DEBERTA_3),
    "DeBERTa-base, 512": lambda: launch_family(torch.bfloat16, 512, **DEBERTA_3),
    "ModernBERT-base, 1024": lambda: launch_family(torch.bfloat16, 1024, **MODERN_BASE),
    "ModernBERT-large, 1024": lambda: launch_family(torch.bfloat16, 1024, **MODERN_LARGE),
    "ModernBERT-large, 1024, in fp8": lambda: launch_family(torch.bfloat16, 1024, in_fp8=True, **MODERN_LARGE),
}
"""What the runbook trains, and its neighbours: each launches its variants."""


@pytest.mark.parametrize("name", TRAINED)
def test_parity_launches_what_training_launches(compared, name):
    with recording() as launched:
        TRAINED[name]()
    assert len(launched) > 10
    assert sorted(map(str, launched - compared)) == []
