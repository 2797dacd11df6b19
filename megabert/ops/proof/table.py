"""The table of small problems of each op, with which a backend is held against the op's definition in a second or so.

    from megabert.ops.proof.table import Shapes, compare

    shapes = Shapes.of_model(config.model, length=512, dtype=torch.bfloat16)
    for op in shapes.ops:                                     # the ops of such a model
        for backend in usable_backends(op, "cuda"):           # megabert.ops.backend: names, best first
            for row in compare(op, backend, shapes, torch.device("cuda")):
                print(row.op, row.problem, row.backend, row.worst, row.error, row.bound, row.passes, row.failure)

``PROBLEMS[op](shapes, generator)`` returns problems by label, whose inputs lie on the generator's device. Each has
inputs, a reference in float64 and a tolerance per dtype (``problem.Problem``); ``problem.errors(problem, dtype,
backend=...)`` returns the error of the result and of each gradient. Problems named ``mask`` or ``keys`` have a
tolerance of 0: dropout's masks of the forward and the backward pass against plain torch on the CPU, bit for bit.

Widths, heads, classes, dtype and the longest sequence are the run's, because they decide which kernels run; tokens are
few. Sequences end at LONGEST_IN_PARTS + 1 tokens, above which the kernels are the same.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from megabert.foundation.errors import KernelError
from megabert.ops.backend import ATTENTION_OPS
from megabert.ops.proof import exact_problems, problems
from megabert.ops.proof.problem import Problem, errors
from megabert.ops.triton_support.tile_sizes import BIAS_GELU_PROGRAMS, LONGEST_IN_PARTS, WAVES, multiprocessors_of
from megabert.settings.config.model import ModelConfig

Problems = dict[str, Problem]
LAYER_NORM_EXTRAS = (
    (),
    ("unshifted",),
    ("residual",),
    ("bias", "residual"),
    ("bias", "dropout", "residual"),
    ("bias", "dropout", "residual", "twice"),
)
"""The embeddings', the head's, and a layer's: in validation, and in training with its result used once or twice."""
ADD_LAYER_NORM_EXTRAS = ((), ("sum",), ("dropout", "sum"), ("bias", "dropout", "sum"))
"""ModernBERT's: the last one, a layer's, a layer's with dropout, and with a shift."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What decides which kernels a model launches."""

    attention: str
    """Kind of attention, a key of ``backend.ATTENTION_OPS``."""
    hidden: int
    """Width of a hidden state."""
    heads: int
    """Attention heads."""
    intermediate: int
    """Width of the feed-forward layer."""
    classes: int
    """Size of the vocabulary."""
    length: int
    """Tokens of the longest sequence."""
    reach: int
    """Tokens that a token sees to each side in layers with a window, if the kind of attention has one."""
    span: int
    """Rows of the table of relative positions to each side, if the kind of attention has one."""
    is_approximate: bool
    """Whether GELU is in its tanh form."""
    dtype: torch.dtype
    """Dtype of the model's weights."""

    @classmethod
    def of_model(cls, model: ModelConfig, *, length: int, dtype: torch.dtype) -> "Shapes":
        """Return the shapes of a model, whose vocabulary is known, at a longest sequence."""
        assert model.vocab_size != "auto"
        return cls(
            attention=model.attention_kind,
            hidden=model.hidden_size,
            heads=model.num_attention_heads,
            intermediate=model.intermediate_size,
            classes=model.vocab_size,
            length=min(length, LONGEST_IN_PARTS + 1),
            reach=model.reach if model.attention_kind == "windowed" else 1,
            span=model.relative_span if model.attention_kind == "disentangled" else 1,
            is_approximate=model.hidden_act == "gelu_new",
            dtype=dtype,
        )

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops of ``backend.BACKENDS`` that training such a model calls."""
        gelu = "gated_gelu" if self.attention == "windowed" else "bias_gelu"
        attention = ATTENTION_OPS[self.attention]
        return ("dropout_keys", "dropout", "embedding", "layer_norm", attention, gelu, "cross_entropy", "lamb")


def rows_on(device: torch.device, width: int, *, elements: int = 2048) -> int:
    """Return few rows that still give each program of a backward pass more than one tile, narrow rows included.

    Args:
        device: Where the programs run.
        width: Elements of a row.
        elements: Elements that the programs of a multiprocessor work on at once; by default LayerNorm's.
    """
    return max(8, elements // width) * multiprocessors_of(device) + 3


def layer_norm_problems(shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return BERT's LayerNorms or ModernBERT's, with their masks."""
    shape = (rows_on(generator.device, shapes.hidden), shapes.hidden)
    has_sum = shapes.attention == "windowed"
    extras = ADD_LAYER_NORM_EXTRAS if has_sum else LAYER_NORM_EXTRAS
    make = problems.add_layer_norm_problem if has_sum else problems.layer_norm_problem
    found = {"+".join(some) or "plain": make(shape, generator, extras=some) for some in extras}
    return found | {"mask": exact_problems.layer_norm_mask_problem(shape, generator, returns_sum=has_sum)}


def _lengths_and_sizes(shapes: Shapes) -> tuple[list[int], dict[str, Any]]:
    """Return a few sequences for attention, the longest one first, and its heads."""
    sizes = {"heads": shapes.heads, "head_width": shapes.hidden // shapes.heads}
    return [shapes.length, max(1, shapes.length * 5 // 8), 1], sizes


def attention_problems(shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return two cases: a few sequences, and enough that one program takes all keys of a head."""
    few, sizes = _lengths_and_sizes(shapes)
    more = WAVES * multiprocessors_of(generator.device) // shapes.heads + 1
    make: Callable[..., Problem] = functools.partial(problems.attention_problem, generator=generator, **sizes)
    return {
        "few": make(few, padding=5),
        "many": make([*few, *[min(9, shapes.length)] * more]),
        "without dropout": make(few, padding=5, dropout=0.0),
        "mask": exact_problems.attention_mask_problem(few, generator, padding=5, **sizes),
    }


def rotary_attention_problems(shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return layers that see all tokens and layers with a window."""
    lengths, sizes = _lengths_and_sizes(shapes)
    found: Problems = {}
    for view, reach in (("all", None), ("window", shapes.reach)):
        sizes |= {"reach": reach, "padding": lengths[0] + 5}
        make = functools.partial(problems.rotary_attention_problem, lengths, generator, **sizes)
        found |= {view: make(), f"{view} without dropout": make(dropout=0.0, padding=0)}
        found[f"{view} mask"] = exact_problems.rotary_attention_mask_problem(lengths, generator, **sizes)
    return found


def disentangled_attention_problems(shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return both kinds of scores of positions, and one without the other."""
    lengths, sizes = _lengths_and_sizes(shapes)
    sizes |= {"span": shapes.span, "padding": 5}
    make = functools.partial(problems.disentangled_attention_problem, lengths, generator, **sizes)
    found = {"c2p and p2c": make(), "without dropout": make(dropout=0.0, padding=0)}
    found |= {term: make(terms=(term,)) for term in problems.BOTH_TERMS}
    return found | {"mask": exact_problems.disentangled_attention_mask_problem(lengths, generator, **sizes)}


def gelu_problems(make: Callable[..., Problem], shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return the feed-forward layer's GELU."""
    width, form = shapes.intermediate, "tanh" if shapes.is_approximate else "erf"
    shape = (rows_on(generator.device, width, elements=2048 * BIAS_GELU_PROGRAMS), width)
    make = functools.partial(make, shape, generator, approximate=shapes.is_approximate)
    return {form: make(), f"{form} of negative numbers": make(is_negative=True)}


def cross_entropy_problems(shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return the loss over the vocabulary, padded, and over two classes."""
    make = problems.cross_entropy_problem
    padded = -(-(shapes.classes + 1) // 64) * 64
    return {
        "vocabulary": make((33, padded), generator, classes=shapes.classes),
        "two classes": make((33, 2), generator, classes=2),
    }


def lamb_problems(shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return both passes of LAMB and of StableAdamW, which write the model's weights in 16 bits, and a skipped step."""
    rounded = None if shapes.dtype == torch.float32 else shapes.dtype
    found = {
        name: exact_problems.lamb_problem(50_001, generator, rounded=rounded, measures_gradient=measures_gradient)
        for name, measures_gradient in (("both passes", False), ("of StableAdamW", True))
    }
    return found | {"skipped": exact_problems.skipped_lamb_problem(20_001, generator)}


def dropout_problems(shapes: Shapes, generator: torch.Generator) -> Problems:
    """Return the embeddings' dropout, with its masks."""
    shape = (rows_on(generator.device, shapes.hidden), shapes.hidden)
    return {
        "values": exact_problems.dropout_problem(shape, generator),
        "mask": exact_problems.dropout_mask_problem(shape, generator),
    }


PROBLEMS: dict[str, Callable[[Shapes, torch.Generator], Problems]] = {
    "dropout_keys": lambda _, generator: {"keys": exact_problems.dropout_keys_problem(1500, generator)},
    "dropout": dropout_problems,
    "layer_norm": layer_norm_problems,
    "attention": attention_problems,
    "rotary_attention": rotary_attention_problems,
    "disentangled_attention": disentangled_attention_problems,
    "bias_gelu": functools.partial(gelu_problems, problems.bias_gelu_problem),
    "gated_gelu": functools.partial(gelu_problems, problems.gated_gelu_problem),
    "cross_entropy": cross_entropy_problems,
    "lamb": lamb_problems,
    "embedding": lambda shapes, generator: {
        "gradient": problems.table_gradient_problem((300, shapes.hidden), generator, rows=20)
    },
    "dense": lambda shapes, generator: {"sum": problems.dense_problem((1000, shapes.hidden), generator)},
    "fp8": lambda shapes, generator: {
        "products": problems.fp8_problem(999, shapes.hidden, shapes.intermediate, generator)
    },
    "fp8_casts": lambda shapes, generator: {
        "products": exact_problems.fp8_casts_problem(
            rows_on(generator.device, shapes.hidden),
            shapes.hidden,
            shapes.intermediate,
            generator,
            is_gated=shapes.attention == "windowed",
            is_approximate=shapes.is_approximate,
        ),
    },
}
"""Makes the small problems of each op. ``dense`` and ``fp8``, which `obstacle` of ``ops.fp8`` may refuse, have no
backends of their own."""


@dataclass(frozen=True)
class OpCheck:
    """One backend on one problem."""

    op: str
    """Name of the op, a key of ``PROBLEMS``."""
    problem: str
    """Label of the problem."""
    backend: str
    """Name of the backend."""
    dtype: torch.dtype
    """Dtype of the inputs."""
    worst: str
    """``out`` or the input whose gradient is furthest off; empty if the backend raised an error."""
    error: float
    """||value - reference|| / ||reference||; NaN if a value is NaN or the backend raised an error."""
    bound: float
    """Largest error that passes; 0 asks for equality bit for bit."""
    failure: str = ""
    """The error that the backend raised."""
    is_refused: bool = False
    """Whether that error says that the backend does not take such inputs, which is no difference."""

    @property
    def passes(self) -> bool:
        """Whether the backend matches."""
        return self.error <= self.bound

    def __str__(self) -> str:
        where = f"{self.op} ({self.problem}, {str(self.dtype).removeprefix('torch.')}) by {self.backend}"
        if self.failure:
            return f"{where} failed: {self.failure}"
        return f"{where}: relative error of {self.worst} {self.error:.2g}, allowed {self.bound:g}"


def compare(op: str, backend: str, shapes: Shapes, device: torch.device, *, seed: int = 0) -> Iterator[OpCheck]:
    """Yield how a backend does on each small problem of an op; if it raises an error, it failed or refuses this one.

    Args:
        op: A key of ``PROBLEMS``.
        backend: A backend that can run on the device; ``torch`` for ``dense`` and ``fp8``.
        shapes: Widths and dtype.
        device: Where to run.
        seed: Of the random inputs.
    """
    generator = torch.Generator(device).manual_seed(seed)
    for label, problem in PROBLEMS[op](shapes, generator).items():
        yield compare_one(op, label, problem, backend, shapes.dtype)


def compare_one(op: str, label: str, problem: Problem, backend: str, dtype: torch.dtype) -> OpCheck:
    """Compare a backend with one problem, in the op's only dtype if it does not take the one that is given."""
    if dtype not in problem.tolerance:
        (dtype,) = problem.tolerance
    empty = OpCheck(op, label, backend, dtype, "", math.nan, problem.tolerance[dtype])
    try:
        with warnings.catch_warnings():  # poisoned memory makes torch warn of operations that may not repeat
            warnings.simplefilter("ignore")
            measured = errors(problem, dtype, backend=backend)
    except Exception as error:
        is_refused = isinstance(error, KernelError)
        return replace(empty, failure=f"{type(error).__name__}: {error}", is_refused=is_refused)
    worst = max(measured, key=lambda name: math.inf if math.isnan(measured[name]) else measured[name])
    return replace(empty, worst=worst, error=measured[worst])
