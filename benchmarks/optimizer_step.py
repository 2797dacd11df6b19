"""What an optimizer step costs beside forward and backward, counted on a CPU: operations and bytes a parameter.

    python -m benchmarks.optimizer_step [--engine zero1] [--precision bf16] [--optimizer lamb]

The model has BERT-Large's parameters in number, not in size, and a loss that is their sum; what autograd needs for that
alone is subtracted. Weights of dense layers get their gradient from a product, of one token. An operation is one that
torch.profiler sees and that calls no other, without views and allocations; on a GPU it is a kernel or more. Bytes are
those of the tensors that it reads and writes. LAMB's two passes and the products that add to a float32 sum are counted
as their kernels are (`docs/ops.md`, `megabert.ops.dense`), and not run: on a CPU torch computes them by other
operations.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import megabert.engine.gradient_reduction
import megabert.engine.zero_stages
import megabert.optim.lamb
from megabert.distributed.process_group import World, distributed_world
from megabert.engine.build import build_engine
from megabert.engine.engine import Engine
from megabert.models.bert import BertForPreTraining
from megabert.models.layers import Dense
from megabert.ops.dense import dense
from megabert.ops.lamb.api import Passes
from megabert.optim import StepSettings, build_optimizer
from megabert.settings.config.deepspeed import derive_deepspeed
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OptimizerConfig

MODEL = ModelConfig(
    vocab_size=512,
    hidden_size=32,
    num_hidden_layers=24,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=32,
)
FREE = (
    "view",
    "detach",
    "alias",
    "empty",
    "new_empty",
    "split",
    "slice",
    "select",
    "expand",
    "unsqueeze",
    "as_strided",
    "narrow",
    "transpose",
    "resolve_conj",
    "device",
)
"""Operations without a kernel: they look at a tensor in another way, ask it something, or allocate."""
PRODUCT = "mm"
"""An operation that is one kernel, whatever it calls on a CPU."""
OVERWRITING = ("copy_", "zero_", "fill_")
"""Operations whose result does not depend on what was there."""
GATHERING = ("embedding", "index_select", "gather")
"""Operations that read some rows of their first tensor."""


class Sum(nn.Module):
    """A model whose forward pass is the sum of all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertForPreTraining(MODEL)
        self.dense = {id(module.weight) for module in self.modules() if isinstance(module, Dense)}

    def forward(self, multiply: Any = dense) -> Tensor:
        """Return the sum, float32; of a multiple, so that gradients are tensors of their own, as in a dense layer."""

        def total(parameter: Tensor) -> Tensor:
            if id(parameter) in self.dense:
                return multiply(parameter.new_ones(1, parameter.shape[1]), parameter).sum()
            return (parameter * 1.5).sum()

        return torch.stack([total(parameter).float() for parameter in self.parameters()]).sum()


def moved_bytes(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the bytes of the tensors that an operation of torch reads and writes; 0 if it has no kernel."""
    name = function.overloadpacket.__name__
    if function.is_view or name.startswith(FREE) or "c10d" in str(function):
        return 0
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    written = args[0] if result is None else result  # operations on lists in place return nothing
    made = [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor)]
    if name in GATHERING:  # of the first tensor it reads no more than it returns
        given[0] = made[0]
    moved = sum(leaf.nbytes for leaf in given + made)
    known = {id(leaf) for leaf in given}
    if name in OVERWRITING and any(id(leaf) in known for leaf in made):
        moved -= given[0].nbytes  # it is written only
    return moved


class Bytes(TorchDispatchMode):
    """Adds up the bytes of the tensors that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        result = function(*args, **(kwargs or {}))
        self.add(function.overloadpacket.__name__, moved_bytes(function, args, kwargs, result))
        return result

    def add(self, name: str, moved: int) -> None:
        """Count bytes."""
        self.total += moved
        self.by_name[name] += moved


@contextmanager
def as_on_a_gpu(counted: Bytes, launches: Counter[str]) -> Iterator[None]:
    """Take norms in one call, and count LAMB's kernels instead of running its passes."""

    def squares(tensors: list[Tensor], device: torch.device) -> Tensor:
        return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64)).square()

    def compute_update(weights: Tensor, *_: Tensor, fragments: Sequence[Any], **__: Any) -> None:
        launches["lamb"] += 2
        counted.add("lamb", 28 * sum(fragment.numel for fragment in fragments))

    def apply_update(weights: Tensor, *_: Tensor, rounded: Tensor | None = None, fragments: Any, **__: Any) -> None:
        launches["lamb"] += 1
        each = 12 if rounded is None else 12 + rounded.element_size()
        counted.add("lamb", each * sum(fragment.numel for fragment in fragments))

    def add_product(total: Tensor, *_: Tensor, is_first: bool) -> None:
        launches["product"] += 1
        counted.add("product", total.nbytes if is_first else 2 * total.nbytes)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(megabert.engine.gradient_reduction, "add_product_", add_product))
        stack.enter_context(mock.patch.object(megabert.engine.zero_stages, "sums_of_squares", squares))
        passes = Passes(compute_update, apply_update)
        stack.enter_context(mock.patch.object(megabert.optim.lamb, "lamb_passes", return_value=passes))
        yield


def run_step(engine: Engine, micro_steps: int) -> None:
    """Take one optimizer step."""
    for number in range(1, micro_steps + 1):
        engine.backward(engine.forward(), is_last=number == micro_steps)
    engine.step(StepSettings(lr=1e-3), torch.zeros(4, dtype=torch.float64))


def run_plain(engine: Engine, micro_steps: int) -> None:
    """Run forward and backward alone, and drop the gradients."""
    for _ in range(micro_steps):
        torch.autograd.grad(engine.module(functional.linear), list(engine.module.parameters()))


def count(run: Any, engine: Engine, micro_steps: int) -> dict[str, Counter[str]]:
    """Return operations and bytes of a run by name."""
    counted, launches = Bytes(), Counter[str]()
    with as_on_a_gpu(counted, launches), torch.profiler.profile() as profile, counted:
        run(engine, micro_steps)
    operations = Counter(event.key for event in profile.events() if _is_kernel(event))
    return {"operations": operations + launches, "bytes": counted.by_name}


def _is_kernel(event: Any) -> bool:
    """Tell whether an event of the profiler is an operation that works, and calls no other that does."""
    name = event.key.removeprefix("aten::")
    if event.key == name or name == "t" or name.startswith(FREE) or _is_in_product(event.cpu_parent):
        return False
    return name == PRODUCT or not any(map(_works, event.cpu_children))


def _is_in_product(event: Any) -> bool:
    return event is not None and (event.key == f"aten::{PRODUCT}" or _is_in_product(event.cpu_parent))


def _works(event: Any) -> bool:
    return _is_kernel(event) or any(map(_works, event.cpu_children))


def measure(world: World, *, engine_name: str, precision: str, optimizer: str) -> dict[str, Any]:
    """Return what a step of one micro-step costs beside forward and backward, and what each further one adds."""
    model = Sum()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    inner = build_optimizer(model.named_parameters(), OptimizerConfig(name=optimizer))  # type: ignore[arg-type]
    ds_config = derive_deepspeed(engine_name, precision=precision, max_grad_norm=1.0)  # type: ignore[arg-type]
    engine = build_engine(model, inner, ds_config, world)
    run_step(engine, 1)  # moments are allocated
    totals: dict[int, dict[str, Counter[str]]] = {}
    for micro_steps in (1, 2):
        whole, plain = count(run_step, engine, micro_steps), count(run_plain, engine, micro_steps)
        totals[micro_steps] = {kind: Counter(whole[kind]) for kind in whole}
        for kind, values in plain.items():
            totals[micro_steps][kind].subtract(values)

    def row(kind: str, micro_steps: int, scale: float = 1.0) -> float:
        return round(totals[micro_steps][kind].total() / scale, 2)

    largest = {name: round(value / parameters, 2) for name, value in totals[1]["bytes"].most_common(6)}
    return {
        "engine": engine_name,
        "precision": precision,
        "optimizer": optimizer,
        "tensors": len(list(model.parameters())),
        "operations": row("operations", 1),
        "bytes a parameter": row("bytes", 1, parameters),
        "operations, each further micro-step": row("operations", 2) - row("operations", 1),
        "bytes a parameter, each further micro-step": round(
            row("bytes", 2, parameters) - row("bytes", 1, parameters), 2
        ),
        "by name": largest,
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="zero1")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--optimizer", default="lamb", choices=["lamb", "adamw"])
    arguments = parser.parse_args()
    with distributed_world("cpu") as world:
        row = measure(world, engine_name=arguments.engine, precision=arguments.precision, optimizer=arguments.optimizer)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
