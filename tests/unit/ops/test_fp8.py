"""Products in 8 bits against float64: casts, both products, the dense layer, and the call of a GPU's kernel."""

import pytest
import torch
from torch._meta_registrations import meta_scaled_mm
from unit.ops.test_dense import Sum

from megabert.engine.engine import refuse_precision
from megabert.foundation.errors import ConfigError
from megabert.ops import fp8
from megabert.ops.dense import dense, sum_products_in
from megabert.ops.fp8 import cast_rows, obstacle, row_product, row_product_reference, scales_of
from megabert.settings.config.model import ModelConfig

DTYPES = [torch.bfloat16, torch.float32]
ROUNDED = {torch.bfloat16: 4e-3, torch.float32: 1e-6}
"""Largest relative error of a product of exact factors: sums in float32, a result in the type of the inputs."""
INPUTS, OUTPUTS = 96, 40


def rows(generator, *shape, dtype=torch.bfloat16):
    """Rows of all sizes with outliers, and one of zeros if there are several."""
    spread = torch.exp(3 * torch.randn(shape[0], 1, generator=generator))
    values = torch.randn(*shape, generator=generator) * spread
    values[:, ::29] *= 300
    values[shape[0] // 2 :: 7] *= 0.0 if shape[0] > 1 else 1.0
    return values.to(dtype)


def relative(value, expected):
    return float((value.double() - expected).norm() / expected.norm())


def nearest(rows_RK):
    """The nearest of all finite values of the 8-bit type times the row's scale."""
    grid = torch.arange(256, dtype=torch.uint8).view(fp8.TYPE).double()
    grid, scales = grid[grid.isfinite()].unique(), scales_of(rows_RK).double()
    return grid[(rows_RK.double()[..., None] / scales[..., None] - grid).abs().argmin(-1)] * scales


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cast_takes_the_nearest_value(dtype, generator):
    x = rows(generator, 9, 64, dtype=dtype)
    values, scales = cast_rows(x)
    expected, exact = nearest(x), values.double() * scales.double()
    # Of two that are equally near either may be listed first.
    assert torch.equal((exact - x.double()).abs(), (expected - x.double()).abs())
    assert torch.equal(exact, fp8._rounded(x.double()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 2, 15, 17, 8192])
def test_rows_of_any_number_are_cast_and_multiplied_as_in_float64_infinities_too(tokens, dtype, generator):
    x, w = rows(generator, tokens, INPUTS, dtype=dtype), rows(generator, OUTPUTS, INPUTS, dtype=dtype)
    x[::5, 3] = torch.inf
    values, scales = cast_rows(x)
    exact = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(values.double() * scales.double(), fp8._rounded(x.double()), **exact)
    x[1::5, 4] = torch.nan
    product, expected = row_product(x, w), row_product_reference(x, w)
    assert product[0].isnan().all()
    assert torch.equal(product.isfinite(), expected.isfinite())
    assert tokens < 3 or relative(product.nan_to_num(), expected.nan_to_num()) < ROUNDED[dtype]


def test_a_scale_is_the_smallest_power_of_two_that_fits():
    top = torch.finfo(fp8.TYPE).max
    largest = torch.tensor([[top], [top * 1.01], [top / 2], [top / 2 * 1.01], [1e-20], [3e38]])
    scales = scales_of(largest)
    assert torch.equal(torch.frexp(scales).mantissa, torch.full_like(scales, 0.5))
    assert ((largest / scales <= top) & (largest / scales > top / 2)).all()


def test_rows_of_zeros_and_of_the_smallest_numbers_stay_finite():
    x = torch.tensor([[0.0, -0.0], [1e-40, 0.0], [1e-38, -1e-38]])
    assert (row_product(x, torch.ones(3, 2)).abs() < 1e-37).all()


def test_scales_look_at_their_row_alone(generator):
    x, w = rows(generator, 30, INPUTS), rows(generator, OUTPUTS, INPUTS)
    values, scales = cast_rows(x)
    few_values, few_scales = cast_rows(x[5:9])
    assert torch.equal(few_values.float(), values[5:9].float())
    assert torch.equal(few_scales, scales[5:9])
    assert relative(row_product(x[5:9], w), row_product(x, w)[5:9].double()) < 1e-6


def test_a_weight_is_the_same_by_outputs_and_by_inputs(generator):
    w = torch.randn(64, 48, generator=generator)
    w = torch.where(w.abs() < 0.01, 0.01, w)
    (by_output, s), (by_input, t) = cast_rows(w), cast_rows(w.t())
    assert torch.equal(by_output.float() * s, (by_input.float() * t).t())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 100, 257, 8192])
def test_output_and_gradients_match_float64(tokens, dtype, generator):
    x, w = rows(generator, tokens, INPUTS, dtype=dtype), rows(generator, OUTPUTS, INPUTS, dtype=dtype)
    bias, grad = torch.randn(OUTPUTS, generator=generator).to(dtype), rows(generator, tokens, OUTPUTS, dtype=dtype)
    leaves = [tensor.requires_grad_() for tensor in (x, w, bias)]
    out = dense(*leaves, in_fp8=True)
    out.backward(grad)
    x, w, bias = (tensor.detach() for tensor in leaves)
    assert relative(out.detach(), row_product_reference(x, w) + bias.double()) < ROUNDED[dtype]
    assert relative(leaves[0].grad, row_product_reference(grad, w.t())) < ROUNDED[dtype]
    assert torch.equal(leaves[1].grad, grad.t() @ x), "the weight's gradient is not in 8 bits"
    assert torch.equal(leaves[2].grad, grad.sum(0))
    assert relative(out.detach(), x.double() @ w.double().t() + bias.double()) > 5e-3, "nothing was rounded to 8 bits"


def test_a_sum_gets_the_weights_gradient_in_16_bits(generator):
    x, w, grad = rows(generator, 33, INPUTS), rows(generator, OUTPUTS, INPUTS), rows(generator, 33, OUTPUTS)
    kept = Sum(OUTPUTS, INPUTS)
    sum_products_in(w.requires_grad_(), kept)
    dense(x.requires_grad_(), w, in_fp8=True).backward(grad)
    assert w.grad is None
    assert torch.equal(kept.total, (grad.t() @ x.detach()).float())
    assert relative(x.grad, row_product_reference(grad, w.detach().t())) < ROUNDED[torch.bfloat16]


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_stays_so_in_its_row_alone(bad, generator):
    x, w = rows(generator, 6, INPUTS), rows(generator, OUTPUTS, INPUTS)
    clean = row_product(x, w)
    x[3, 7] = bad
    out = row_product(x, w)
    assert out[3].isnan().all()
    assert torch.equal(out[[0, 1, 2, 4, 5]], clean[[0, 1, 2, 4, 5]])


def test_scales_frozen_at_1_are_seen(monkeypatch, generator):
    x, w = 1e-5 * torch.randn(20, INPUTS, generator=generator), torch.randn(OUTPUTS, INPUTS, generator=generator)
    monkeypatch.setattr(fp8, "scales_of", lambda rows_RK: torch.ones(len(rows_RK), 1))
    assert relative(row_product(x, w), row_product_reference(x, w)) == 1, "all of it vanishes"


@pytest.fixture
def kernel(monkeypatch):
    """In the place of ``_scaled_mm`` torch's own check of its arguments on a GPU, and the product in float32."""

    def multiply(left, right, *, scale_a, scale_b, bias, out_dtype, use_fast_accum):
        meta = [None if tensor is None else tensor.to("meta") for tensor in (left, right, scale_a, scale_b, bias)]
        monkeypatch.setattr("torch._meta_registrations.device_hint", lambda tensor: "cuda")
        shape = meta_scaled_mm(*meta, None, out_dtype, use_fast_accum).shape
        assert [tensor.stride() for tensor in meta[:2]] == [tensor.stride() for tensor in (left, right)]
        assert len(left) % 16 == 0
        product = (left.float() * scale_a) @ (right.float() * scale_b) + (0 if bias is None else bias.float())
        assert product.shape == shape
        return product.to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", multiply)
    monkeypatch.setattr(fp8, "_is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(fp8, "choose", lambda *_: fp8.cast_rows_torch)
    fp8._adds_bias.cache_clear()
    yield
    fp8._adds_bias.cache_clear()


@pytest.fixture(params=[True, False])
def adds_bias(request, kernel, monkeypatch):
    """Whether ``_scaled_mm`` takes a bias."""
    multiply = torch._scaled_mm

    def refuse(*factors, bias, **options):
        if bias is not None:
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        return multiply(*factors, bias=None, **options)

    if not request.param:
        monkeypatch.setattr(torch, "_scaled_mm", refuse)


@pytest.mark.parametrize("tokens", [1, 5, 16, 33, 300])
def test_a_gpus_call_has_the_shapes_and_strides_that_torch_asks_for(adds_bias, tokens, generator):
    x, w = rows(generator, tokens, 64), rows(generator, 48, 64)
    bias, grad = torch.randn(48, generator=generator).bfloat16(), rows(generator, tokens, 48)
    x.requires_grad_()
    out = dense(x, w, bias, in_fp8=True)
    out.backward(grad.t().contiguous().t())  # not contiguous, as autograd may hand it over
    assert relative(out.detach(), row_product_reference(x.detach(), w) + bias.double()) < 4e-3
    assert relative(x.grad, row_product_reference(grad, w.t())) < 4e-3


CUDA = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch):
    """A GPU of a compute capability, whose name is fixed, and tensors on the CPU."""

    def put(capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Card")
        ones = torch.ones
        monkeypatch.setattr(torch, "ones", lambda *shape, device=None, **options: ones(*shape, **options))

    return put


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (8, 6)])
def test_older_cards_are_refused(card, capability):
    card(capability)
    model = ModelConfig(vocab_size=100, hidden_size=64, num_attention_heads=2, intermediate_size=96)
    sentence = r"precision=fp8 cannot run on cuda:0: Card has compute capability {}\.{}, below 8\.9\. Take bf16\."
    with pytest.raises(ConfigError, match=sentence.format(*capability)):
        refuse_precision("fp8", CUDA, model)


def test_a_card_that_has_it_is_asked_by_a_product_of_each_width(card, kernel):
    card((8, 9))
    assert obstacle(CUDA, [64, 256]) is None
    assert obstacle(CUDA, [64, 100]) == "a width of 100 is no multiple of 16"


def test_a_call_that_torch_refuses_is_the_reason(card, monkeypatch):
    def refuse(*tensors, **options):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

    card((12, 0))
    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    monkeypatch.setattr(fp8, "_is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(fp8, "choose", lambda *_: fp8.cast_rows_torch)
    model = ModelConfig(vocab_size=100, hidden_size=64, num_attention_heads=2, intermediate_size=96)
    with pytest.raises(ConfigError, match=r"precision=fp8 cannot run on cuda:0: .*NOT_SUPPORTED\. Take bf16"):
        refuse_precision("fp8", CUDA, model)
    refuse_precision("bf16", CUDA, model)


def test_the_generators_widths_are_asked_for_too(card, kernel):
    card((9, 0))
    sizes = {"vocab_size": 100, "hidden_size": 80, "num_attention_heads": 2, "intermediate_size": 160}
    refuse_precision("fp8", CUDA, ModelConfig(**sizes))
    with pytest.raises(ConfigError, match="a width of 40 is no multiple of 16"):
        refuse_precision("fp8", CUDA, ModelConfig(**sizes, family="electra", generator_size=0.5))
