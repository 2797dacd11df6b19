"""A micro-step copies nothing between host and device but its batch: the host would wait for the device each time.

The model runs on meta tensors, where a copy from the host is seen as on a GPU; Triton's launches are recorded only.
"""

from collections import Counter

import pytest
import torch

pytest.importorskip("triton")

from support.recorded_launches import META, recording
from support.tiny_models import tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megabert.data.batch import probe_batch
from megabert.models import bert
from megabert.models.build import build_model
from megabert.settings.config.run import OpsConfig

SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "max_position_embeddings": 128}
FAMILIES = {"albert": {"embedding_size": 32}, "modernbert": {"local_attention": 32}}
FAMILIES |= {family: {} for family in ("bert", "roberta", "deberta", "deberta-v3")}


class Crossings(TorchDispatchMode):
    """Counts operations with tensors of both devices; a number on the host travels with the launch and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        if len({tensor.device.type for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}) > 1:
            self.counts[str(function)] += 1
        return out


def crossings_of_two_micro_steps(family: str) -> list[dict[str, int]]:
    attention = "torch" if family.startswith("deberta") else "triton"
    ops = OpsConfig(**dict.fromkeys(("layer_norm", "bias_gelu", "cross_entropy"), "triton"), attention=attention)
    counts = []
    with recording() as launched:
        with META:
            model = build_model(tiny_config(family, **SIZES, **FAMILIES[family]), ops=ops).bfloat16()
        for _ in range(2):
            batch = probe_batch(tokens=1000, length=100).to(META)
            with Crossings() as seen:
                output = model(batch)
                (output.mlm_loss_sum + output.nsp_loss_sum).backward()
            counts.append(dict(seen.counts))
        assert launched
    return counts


@pytest.mark.parametrize("family", FAMILIES)
def test_second_micro_step_copies_nothing_from_the_host(family):
    assert crossings_of_two_micro_steps(family)[1] == {}


def test_a_table_that_is_made_on_the_host_each_time_is_seen(monkeypatch):
    first_tokens = bert.first_tokens
    monkeypatch.setattr(
        bert, "first_tokens", lambda batch: torch.zeros(10, dtype=torch.int64).to(META) + first_tokens(batch)
    )
    assert crossings_of_two_micro_steps("bert")[1] == {"aten._to_copy.default": 1}
