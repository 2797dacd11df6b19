"""Part `parity`: every op against its float64 reference on the real device, values and every gradient.

All in bfloat16, which trains there; ops that no card has run yet in float16 and float32 as well.
"""

import contextlib
import itertools

import torch

from benchmarks.gpu.embedding_problem import embedding_problem
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import TINY, Sizes
from benchmarks.gpu.warm import compile_beside
from megabert.ops import fp8
from megabert.ops.proof import exact_problems, problems
from megabert.ops.proof.problem import Problem
from megabert.ops.proof.table import ADD_LAYER_NORM_EXTRAS, LAYER_NORM_EXTRAS, compare_one

ROUNDED = (None, torch.bfloat16, torch.float16)
"""Dtypes of the model's weights, which LAMB writes next to the masters; None: masters alone."""


def parity_problems(sizes: Sizes, generator: torch.Generator) -> dict[str, Problem]:
    """Return one problem a row: odd shapes, BERT-Large's, and every variant that training launches."""
    heads, head_width = sizes.heads, sizes.hidden // sizes.heads
    found = {}
    for shape in ((5, 1023), (300 if sizes is TINY else 4099, sizes.hidden)):
        for extras in LAYER_NORM_EXTRAS:
            label = f"layer_norm {shape[0]}x{shape[1]} {'+'.join(extras) or 'plain'}"
            found[label] = problems.layer_norm_problem(shape, generator, extras=extras)
        for extras in ADD_LAYER_NORM_EXTRAS:
            label = f"add_layer_norm {shape[0]}x{shape[1]} {'+'.join(extras) or 'plain'}"
            found[label] = problems.add_layer_norm_problem(shape, generator, extras=extras)
    for approximate in (False, True):
        shape = (77, sizes.intermediate)
        form = f"{shape[0]}x{shape[1]} {'tanh' if approximate else 'erf'}"
        found[f"bias_gelu {form}"] = problems.bias_gelu_problem(shape, generator, approximate=approximate)
        found[f"gated_gelu {form}"] = problems.gated_gelu_problem(shape, generator, approximate=approximate)
    longest = max(sizes.lengths)
    groups = [[longest // 4, 1, longest // 4 - 3], [longest // 2, 9], [longest, longest - 131, 1]]
    # Enough sequences that a program takes all keys of a head in turn, as in training at 512.
    groups.append([longest] * 17 + [longest // 2 + 1, 1])
    groups = [[max(1, length) for length in lengths] for lengths in groups]
    for lengths in groups:
        for width in (head_width, 32):
            label = f"attention {heads}x{width} {lengths if len(lengths) < 4 else f'{len(lengths)} of {longest}'}"
            found[label] = problems.attention_problem(lengths, generator, heads=heads, head_width=width, padding=5)
    found[f"attention {heads}x{head_width} without dropout"] = problems.attention_problem(
        groups[2], generator, heads=heads, head_width=head_width, padding=5, dropout=0.0
    )
    for lengths, dropout in (([2 * longest, longest // 2 - 3, 1], 0.1), ([longest // 4, 0, 9], 0.1), ([longest], 0.0)):
        for reach in (sizes.reach, None):
            view = "all" if reach is None else f"window {2 * reach}"
            label = f"rotary_attention {heads}x{head_width} {lengths} {view}{'' if dropout else ' without dropout'}"
            found[label] = problems.rotary_attention_problem(
                lengths, generator, heads=heads, head_width=head_width, reach=reach, padding=5, dropout=dropout
            )
    for lengths, dropout, terms in (
        ([longest, longest // 2 - 3, 1], 0.1, ("c2p", "p2c")),
        ([longest // 4, 0, 9], 0.0, ("c2p", "p2c")),
        ([longest // 4, 9], 0.1, ("c2p",)),
        ([longest // 4, 9], 0.1, ("p2c",)),
    ):
        label = f"disentangled_attention {heads}x{head_width} {lengths} {'+'.join(terms)}"
        found[label + ("" if dropout else " without dropout")] = problems.disentangled_attention_problem(
            *(lengths, generator),
            **{"heads": heads, "head_width": head_width, "span": sizes.span},
            terms=terms,
            padding=5,
            dropout=dropout,
        )
    for classes, padded in ((sizes.vocabulary, sizes.vocabulary + 6), (2, 2)):
        found[f"cross_entropy 33x{padded}"] = problems.cross_entropy_problem((33, padded), generator, classes=classes)
    found["dense"] = problems.dense_problem((1000, sizes.hidden), generator)
    widths = (sizes.hidden, sizes.intermediate)
    if fp8.obstacle(generator.device, widths) is None:
        found["fp8 products"] = problems.fp8_problem(999, *widths, generator)
        for is_gated in (False, True):
            form = {"is_gated": is_gated, "is_approximate": False}
            label = f"fp8 casts of layer_norm and {'gated_gelu' if is_gated else 'bias_gelu'}"
            found[label] = exact_problems.fp8_casts_problem(1000, *widths, generator, **form)
    for rows, has_sum in itertools.product((2, 512), (False, True)):
        label = f"embedding {rows}x{sizes.hidden}{' with a sum' if has_sum else ''}"
        found[label] = embedding_problem((1000, sizes.hidden), generator, rows=rows, has_sum=has_sum)
    found["dropout keys"] = exact_problems.dropout_keys_problem(1500, generator)
    found["dropout"] = exact_problems.dropout_problem((400, sizes.hidden), generator)
    found |= mask_problems(sizes, generator)
    for rounded in ROUNDED:
        weights = "" if rounded is None else f" with {str(rounded).removeprefix('torch.')} weights"
        for name in ("lamb", "stable_adamw"):
            found[f"{name}{weights}"] = exact_problems.lamb_problem(
                50_001, generator, rounded=rounded, measures_gradient=name == "stable_adamw"
            )
    return found


def mask_problems(sizes: Sizes, generator: torch.Generator) -> dict[str, Problem]:
    """Return dropout's masks of both passes, which equal plain torch's bit for bit."""
    lengths, heads = [max(sizes.lengths), 9], {"heads": sizes.heads, "head_width": sizes.hidden // sizes.heads}
    found = {"dropout mask": exact_problems.dropout_mask_problem((400, sizes.hidden), generator)}
    for returns_sum in (False, True):
        name = "add_layer_norm" if returns_sum else "layer_norm"
        make = exact_problems.layer_norm_mask_problem
        found[f"{name} mask"] = make((400, sizes.hidden), generator, returns_sum=returns_sum)
    found["attention mask"] = exact_problems.attention_mask_problem(lengths, generator, padding=5, **heads)
    make_mask = exact_problems.disentangled_attention_mask_problem
    found["disentangled_attention mask"] = make_mask(lengths, generator, span=sizes.span, padding=5, **heads)
    for reach in (sizes.reach, None):
        name = f"rotary_attention {'all' if reach is None else f'window {2 * reach}'} mask"
        make = exact_problems.rotary_attention_mask_problem
        found[name] = make(lengths, generator, reach=reach, padding=5, **heads)
    return found


DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OWN_S = 15.0
"""Seconds for the rows once their kernels are compiled."""
NEW_OPS = ("disentangled_attention", "embedding")
"""Ops that are newer than the first run on a card (results/h100.md)."""


def cases(sizes: Sizes, generator: torch.Generator) -> list[tuple[str, Problem, torch.dtype]]:
    """Return label, problem and dtype of each row: bfloat16 or the op's only dtype, and each dtype of a new op."""
    found = []
    for label, problem in parity_problems(sizes, generator).items():
        dtypes = [dtype for dtype in DTYPES if dtype in problem.tolerance]
        for dtype in dtypes if label.startswith(NEW_OPS) else dtypes[:1]:
            found.append((f"{label} {str(dtype).removeprefix('torch.')}", problem, dtype))
    return found


def compile_share(sizes: Sizes, number: int, of: int) -> None:
    """Run every ``of``-th row for the sake of its kernels."""
    for label, problem, dtype in cases(sizes, torch.Generator("cuda"))[number::of]:
        with contextlib.suppress(Exception):
            row(label, problem, dtype, on_gpu=True)


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    generator = torch.Generator(device)
    generator.seed()  # fresh inputs each run
    on_gpu = device.type == "cuda"
    compile_beside(compile_share, (sizes,), limit_s=max(0.0, rows.remaining_s() - OWN_S))
    for label, problem, dtype in cases(sizes, generator):
        rows.measure(label, lambda case=(label, problem, dtype): row(*case, on_gpu=on_gpu))


def row(label: str, problem: Problem, dtype: torch.dtype, *, on_gpu: bool) -> Row:
    """Return the largest error and whether it passes."""
    backend = "triton" if on_gpu else "auto"
    found = compare_one(label.split()[0], label, problem, backend, dtype)
    if found.failure:
        raise RuntimeError(found.failure)
    results = {"worst": found.worst, "relative_error": found.error, "bound": found.bound, "passes": found.passes}
    return {"backend": backend, **results}
