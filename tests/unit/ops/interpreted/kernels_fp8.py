"""Rows in 8 bits in the interpreter: torch's form of the same cast, bit for bit.

Torch rounds for the interpreter (``conftest``); what a card's instruction writes is not shown here. Scales and the
factors of values are the kernel's own.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from support.soak import in_soak
from unit.ops.interpreted.conftest import narrow_shapes

from megabert.ops import fp8
from megabert.ops.backend import forget_disproved
from megabert.ops.bias_gelu.triton import bias_gelu_triton
from megabert.ops.dense import dense
from megabert.ops.fp8 import cast_rows
from megabert.ops.gated_gelu.triton import gated_gelu_triton
from megabert.ops.layer_norm.triton import layer_norm_triton
from megabert.ops.proof import tuning
from megabert.ops.proof.first_run import find_failures, settle
from megabert.ops.proof.table import compare
from megabert.ops.triton_support.row_casts import cast_rows_triton

CPU = torch.device("cpu")


def equal(ours, theirs):
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (9, 48), (3, 1040), (40, 64)])
def test_values_and_scales_equal_torchs(rows, width, dtype, generator):
    x = torch.randn(rows, width, generator=generator) * torch.logspace(-6, 4, rows)[:, None]
    x[:, ::7] *= 300
    x[rows // 2] = 0.0
    ours, by_torch = cast_rows_triton(x.to(dtype)), cast_rows(x.to(dtype))
    assert equal(ours[0][:rows], by_torch[0])
    assert torch.equal(ours[1][:rows], by_torch[1])


@pytest.mark.parametrize("largest", [448.0, 448.5, 224.0, 1e-20, 2.0**-126, 3e38])
def test_scales_at_the_borders_of_powers(largest):
    x = torch.tensor([[largest, -largest / 3] + [0.0] * 14])
    assert torch.equal(cast_rows_triton(x)[1][:1], cast_rows(x)[1])


def test_there_is_room_up_to_the_multiple(generator):
    x = torch.randn(21, 32, generator=generator)
    values, scales = cast_rows_triton(x.t().contiguous().t())
    assert values.shape == (32, 32)
    assert scales.shape == (32, 1)
    assert equal(values[:21], cast_rows(x)[0])


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_is_nan_in_its_row_alone(bad, generator):
    x = torch.randn(4, 32, generator=generator)
    clean = cast_rows_triton(x)[0]
    x[2, 5] = bad
    values = cast_rows_triton(x)[0]
    assert values[2].float().isnan().any()
    assert equal(values[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.fixture
def casts(monkeypatch):
    """The shapes that products have to cast by themselves."""
    shapes, cast_factor = [], fp8.cast_factor

    def counted(rows):
        shapes.append(tuple(rows.shape))
        return cast_factor(rows)

    monkeypatch.setattr(fp8, "cast_factor", counted)
    return shapes


def sub_layers(hidden, inner, tokens, site, generator, *, approximate=False):
    """Return the results and all gradients of dense layers in 8 bits with LayerNorm and both GELUs between them."""

    def leaf(*shape):
        return torch.randn(*shape, generator=generator).bfloat16().requires_grad_()

    x, gain, shift, bias = leaf(tokens, hidden), leaf(hidden), leaf(hidden), leaf(inner)
    weights = (
        leaf(hidden, hidden),
        leaf(inner, hidden),
        leaf(hidden, inner),
        leaf(2 * inner, hidden),
        leaf(hidden, inner),
    )
    first, into, out, both, last = (lambda rows, w=w: dense(rows, w, in_fp8=True) for w in weights)
    y, residual = layer_norm_triton(first(x), gain, shift, shift, x, 1e-12, site, False)
    y = out(bias_gelu_triton(into(y), bias, approximate=approximate))
    y, total = layer_norm_triton(y, gain, None, None, residual, 1e-5, site, True)
    y = last(gated_gelu_triton(both(y), approximate=approximate))
    ((y + total).float() * torch.linspace(-1, 1, hidden)).square().sum().backward()
    return [y, *(tensor.grad for tensor in (x, gain, shift, bias, *weights))]


FORMS = [(64, 256, 21, False), (48, 272, 16, True), (16, 1040, 3, False)]


@pytest.mark.parametrize(
    ("hidden", "inner", "tokens", "approximate"), [*FORMS, *in_soak(*((*sizes, not form) for *sizes, form in FORMS))]
)
def test_casts_that_ride_in_kernels_change_no_bit(
    hidden, inner, tokens, approximate, casts, monkeypatch, request, make_site
):
    def run():
        drawn = torch.Generator().manual_seed(tokens)
        return sub_layers(hidden, inner, tokens, make_site(tokens), drawn, approximate=approximate)

    ours, of_weights = run(), 10
    assert len(casts) == of_weights + 2, "the first input and the last gradient have no kernel before them"
    monkeypatch.setattr(fp8, "product_before", lambda x: None)
    casts.clear()
    in_two_steps = run()
    assert len(casts) == of_weights + 10
    assert [torch.equal(a, b) for a, b in zip(ours, in_two_steps, strict=True)] == [True] * len(ours)
    assert all(tensor.isfinite().all() for tensor in ours)


def test_the_cast_of_a_part_is_not_taken_for_that_of_a_sum(casts, generator):
    x, w, bias = (torch.randn(*shape, generator=generator) for shape in ((16, 32), (32, 32), (32,)))
    x.requires_grad_()
    h = dense(x, w, in_fp8=True)
    (bias_gelu_triton(h, bias, approximate=False) + h).sum().backward()
    assert casts == [(32, 32), (16, 32)] * 2
    part = bias_gelu_triton(h.detach().requires_grad_(), bias, approximate=False)
    assert casts == [(32, 32), (16, 32)] * 2, "nothing is cast where no product follows"
    assert part.grad_fn.product is None


@pytest.fixture(params=["dense", "windowed"])
def shapes(request):
    return replace(narrow_shapes(torch.bfloat16), attention=request.param)


def test_the_first_run_sees_a_cast_that_differs_and_then_no_kernel_casts(shapes, casts, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cases = [("fp8_casts", shapes)]
    assert find_failures(cases, {}, CPU) == {}
    assert (272, shapes.intermediate) not in casts, "GELU's own casts are what is compared"
    leave, (known,) = fp8.leave, tmp_path.rglob("*.json")
    monkeypatch.setattr(fp8, "leave", lambda node, cast, *of: leave(node, (cast[0], 2 * cast[1]), *of))
    known.unlink()
    failures = find_failures(cases, {}, CPU)
    assert list(failures) == [("fp8_casts", "triton")]
    (sentence,) = settle([failures], {}, unproven="fallback", device=CPU)
    assert sentence.startswith("fp8_casts: torch takes the place of a kernel that is wrong here")
    assert [row for row in compare("fp8_casts", "torch", shapes, CPU) if not row.passes] == []
    assert (272, shapes.intermediate) in casts
    forget_disproved()


def test_the_tiles_of_whole_rows_are_tuned(shapes, monkeypatch, tmp_path):
    checked, ever_less = [], itertools.count(-1, -1)
    monkeypatch.setattr(tuning, "compare", lambda op, *_: checked.append(op) or [])
    given = {"tokens": 16, "minutes": 5.0, "time_ms": lambda call: call() or 2.0 ** next(ever_less)}
    tuned = tuning.tune([("fp8_casts", shapes)], torch.device("cpu"), tmp_path / "tiles.json", **given)
    (launch,) = tuned
    assert launch.name == f"gelu_rows {shapes.intermediate}"
    assert {tile[1] for tile in launch.times} == {32}, "a tile has whole rows"
    assert (launch.best, checked) == (list(launch.times)[-1], ["fp8_casts"]), "by the casts that take this tile"
