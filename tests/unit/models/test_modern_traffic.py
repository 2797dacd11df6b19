"""Bytes that a ModernBERT layer's elementwise kernels move in training, counted on meta tensors: nothing runs."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction

from megabert.models.layers import LayerContext
from megabert.models.modern import PreNormLayer
from megabert.ops import backend
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig

TOKENS, HIDDEN, INTERMEDIATE = 4096, 256, 640
PRODUCTS = {"aten.mm", "aten.addmm"}


class TensorOps(TorchDispatchMode):
    """Adds up the bytes of torch's own operations on tensors of tokens, but for matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[str, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = str(function).rsplit(".", 1)[0]
        inputs = {tensor.untyped_storage()._cdata for tensor in args if isinstance(tensor, torch.Tensor)}
        tensors = [*args, result] if isinstance(result, torch.Tensor) else [*args]
        is_view = isinstance(result, torch.Tensor) and result.untyped_storage()._cdata in inputs
        large = [t for t in tensors if isinstance(t, torch.Tensor) and t.dim() == 2 and len(t) == TOKENS]
        if name not in PRODUCTS and not is_view and not name.startswith(("aten.empty", "aten.new_empty")) and large:
            self.moved[name] = self.moved.get(name, 0) + sum(tensor.numel() for tensor in large)
        return result


@pytest.fixture
def launches(monkeypatch):
    """Return the kernel and the numbers of all tensors of tokens in each launch, attention's aside."""
    recorded = []

    def run(kernel, *arguments, grid, warmup, **options):
        large = [t for t in arguments if isinstance(t, torch.Tensor) and t.dim() == 2 and len(t) == TOKENS]
        recorded.append((kernel.fn.__name__, sum(tensor.numel() for tensor in large)))

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(backend, "os", SimpleNamespace(environ={"TRITON_INTERPRET": "1"}))
    backend.choose.cache_clear()
    yield recorded
    backend.choose.cache_clear()


def test_layer_moves_sixteen_hidden_and_eight_intermediate_widths_per_token(launches, monkeypatch):
    # Attention's own traffic is another subject: here it hands on a third of its input.
    monkeypatch.setattr(
        "megabert.models.modern.rotary_attention", lambda qkv, *_, **__: qkv.view(TOKENS, 3, HIDDEN)[:, 0].clone()
    )
    config = ModelConfig(
        family="modernbert", vocab_size=64, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=INTERMEDIATE, max_position_embeddings=128,
    )  # fmt: skip
    with torch.device("meta"):
        layer = PreNormLayer(config, OpsConfig(**dict.fromkeys(("layer_norm", "bias_gelu"), "triton")), depth=1)
        hidden = [torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
        packing = SimpleNamespace(turns={True: None, False: None}, sequences=None)
        layer.to(torch.bfloat16)
        with TensorOps() as torch_ops:
            output, total = layer(tuple(hidden), packing, LayerContext(None, 1))
            torch.autograd.backward((output, total), (torch.empty_like(output), torch.empty_like(total)))
    kernels = {"layer_norm_forward", "layer_norm_backward", "gated_gelu_forward", "gated_gelu_backward"}
    assert {name for name, _ in launches} == kernels | {"column_sums_of_partials"}
    moved = sum(numbers for name, numbers in launches if name in kernels)
    assert moved == TOKENS * (16 * HIDDEN + 8 * INTERMEDIATE)
    # What is left to torch is the stand-in of attention.
    assert torch_ops.moved.keys() <= {"aten.clone", "aten.select_backward", "aten.zeros", "aten.copy"}, torch_ops.moved
