"""The first run of an op's backends on a device: what is compared, kept, replaced and refused."""

import json
from dataclasses import replace

import pytest
import torch

from megabert.foundation.errors import KernelError
from megabert.ops import backend
from megabert.ops.backend import Backend, choose, disproved, forget_disproved, no_obstacle, usable_backends
from megabert.ops.bias_gelu import api
from megabert.ops.bias_gelu.cpu import bias_gelu_torch
from megabert.ops.proof import first_run
from megabert.ops.proof.first_run import agree, cases_of, find_failures, settle
from megabert.settings.config.model import ModelConfig

CPU = torch.device("cpu")
MODEL = ModelConfig(
    vocab_size=90, embedding_size=16, hidden_size=32, num_attention_heads=2, intermediate_size=48, family="albert"
)
CASES = [case for case in cases_of([MODEL], [16], torch.float32) if case[0] == "bias_gelu"]
AUTO = {"bias_gelu": "auto"}
WRONG = {("bias_gelu", "planted"): "relative error of out 0.1"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "megabert" / "proven-ops"
    forget_disproved()


class Planted:
    """A backend ahead of plain torch, which multiplies results by a factor and counts its calls."""

    def __init__(self, factor):
        self.factor, self.calls = factor, 0

    def __call__(self, x_TF, bias_F, *, approximate):
        self.calls += 1
        return bias_gelu_torch(x_TF, bias_F, approximate=approximate) * self.factor


@pytest.fixture
def plant(monkeypatch):
    def put(factor):
        planted = Planted(factor)
        table = (Backend("planted", planted, no_obstacle), *backend.BACKENDS["bias_gelu"])
        monkeypatch.setitem(backend.BACKENDS, "bias_gelu", table)
        choose.cache_clear()
        return planted

    yield put
    choose.cache_clear()


def run():
    return api.bias_gelu(torch.ones(2, 4), torch.zeros(4))


def test_cases_are_the_ops_of_a_model_once_each():
    cases = cases_of([MODEL], [16, 24], torch.float32)
    assert len(cases) == len(set(cases))
    assert [shapes.length for op, shapes in cases if op == "attention"] == [16, 24]
    assert sorted(shapes.hidden for op, shapes in cases if op == "layer_norm") == [16, 32]
    assert {op for op, _ in cases} >= {"dropout_keys", "dropout", "bias_gelu", "cross_entropy", "lamb"}
    (casts,) = set(cases_of([MODEL], [16, 24], torch.bfloat16, in_fp8=True)) - {
        (op, replace(shapes, dtype=torch.bfloat16)) for op, shapes in cases
    }
    assert casts[0] == "fp8_casts"


def test_a_backend_that_passes_is_kept_and_not_compared_again(plant, cache):
    planted = plant(1.0)
    assert find_failures(CASES, AUTO, CPU) == {}
    first = planted.calls
    assert first
    assert find_failures(CASES, AUTO, CPU) == {}
    assert planted.calls == first
    (path,) = cache.glob("*.json")
    assert json.loads(path.read_text()) == [f"bias_gelu planted {CASES[0][1]}"]


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '["bias_gelu'], ids=["empty", "object", "number", "cut"])
def test_a_damaged_cache_is_written_anew(plant, cache, damage):
    planted = plant(1.0)
    find_failures(CASES, AUTO, CPU)
    (path,) = cache.glob("*.json")
    path.write_text(damage)
    before = planted.calls
    assert find_failures(CASES, AUTO, CPU) == {}
    assert planted.calls > before
    assert len(json.loads(path.read_text())) == 1


def test_a_cache_that_cannot_be_written_is_done_without(plant, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    planted = plant(1.0)
    for _ in range(2):
        assert find_failures(CASES, AUTO, CPU) == {}
    assert planted.calls > 1


@pytest.mark.parametrize("name", ["device", "unit", "driver", "torch", "triton", "code"])
def test_another_device_version_or_text_is_proven_anew(plant, cache, monkeypatch, name):
    planted = plant(1.0)
    find_failures(CASES, AUTO, CPU)
    before, identity = planted.calls, first_run.identity_of(CPU)
    assert name in identity
    monkeypatch.setattr(first_run, "identity_of", lambda _: identity | {name: "another"})
    find_failures(CASES, AUTO, CPU)
    assert planted.calls > before
    assert len(list(cache.glob("*.json"))) == 2


def test_a_backend_that_differs_is_found_each_time_and_replaced(plant, cache, caplog):
    plant(1.001)
    for _ in range(2):  # a failure is not kept
        failures = find_failures(CASES, AUTO, CPU)
        assert list(failures) == [("bias_gelu", "planted")]
    assert not list(cache.glob("*.json"))
    assert not torch.equal(run(), api.bias_gelu(torch.ones(2, 4), torch.zeros(4), backend="torch"))
    caplog.clear()  # of the notices of which backend runs, if another test has set the level
    with caplog.at_level("WARNING"):
        (sentence,) = settle([failures], AUTO, unproven="fallback", device=CPU)
    assert caplog.messages == [sentence]
    assert sentence.startswith(
        "ops.bias_gelu: torch takes the place of a kernel that is wrong here: bias_gelu (tanh, float"
    )
    assert "by planted: relative error of" in sentence
    assert torch.equal(run(), api.bias_gelu(torch.ones(2, 4), torch.zeros(4), backend="torch"))
    assert disproved() == ["bias_gelu without planted"]
    assert "planted" not in usable_backends("bias_gelu", "cpu")
    with pytest.raises(KernelError, match=r"ops\.bias_gelu=planted cannot run on cpu: it differs from the op's def"):
        api.bias_gelu(torch.ones(2, 4), torch.zeros(4), backend="planted")


def test_what_was_asked_for_by_name_is_refused_not_replaced(plant):
    plant(1.001)
    requested = {"bias_gelu": "planted"}
    failures = find_failures(CASES, requested, CPU)
    with pytest.raises(KernelError, match=r"ops\.bias_gelu: planted differs.*Set ops\.bias_gelu=auto"):
        settle([failures], requested, unproven="fallback", device=CPU)


def test_refuse_ends_the_run(plant):
    plant(1.0)
    with pytest.raises(KernelError, match=r"differs from the op's definition: relative error of out 0\.1 on rank 0"):
        settle([WRONG], AUTO, unproven="refuse", device=CPU)


@pytest.mark.parametrize("unproven", ["fallback", "refuse"])
def test_a_wrong_backend_after_the_first_choice_neither_ends_the_run_nor_takes_part(plant, monkeypatch, unproven):
    plant(1.0)
    first, *others = backend.BACKENDS["bias_gelu"]
    second = Backend("second", bias_gelu_torch, no_obstacle)
    monkeypatch.setitem(backend.BACKENDS, "bias_gelu", (first, second, *others))
    wrong = {("bias_gelu", "second"): "relative error of out 0.1"}
    assert settle([wrong], AUTO, unproven=unproven, device=CPU) == ()
    assert usable_backends("bias_gelu", "cpu")[0] == "planted"
    assert "second" not in usable_backends("bias_gelu", "cpu")


def test_a_backend_that_refuses_a_problem_does_not_differ(monkeypatch):
    def picky(x_TF, bias_F, *, approximate):
        if float(x_TF.detach().max()) < 0:
            raise KernelError("negative numbers are not taken")
        return bias_gelu_torch(x_TF, bias_F, approximate=approximate)

    table = (Backend("planted", picky, no_obstacle), *backend.BACKENDS["bias_gelu"])
    monkeypatch.setitem(backend.BACKENDS, "bias_gelu", table)
    choose.cache_clear()
    for requested in (AUTO, {"bias_gelu": "planted"}):
        failures = find_failures(CASES, requested, CPU)
        assert settle([failures], requested, unproven="refuse", device=CPU) == ()
        assert usable_backends("bias_gelu", "cpu")[0] == "planted"


def test_ranks_agree_on_a_backend_that_all_of_them_take(plant, monkeypatch):
    plant(1.0)
    first, *others = backend.BACKENDS["bias_gelu"]
    monkeypatch.setitem(
        backend.BACKENDS, "bias_gelu", (first, Backend("second", bias_gelu_torch, no_obstacle), *others)
    )
    first_rank = {"bias_gelu": {"planted": None, "second": None, "torch": None}}
    second_rank = {"bias_gelu": {"planted": "no compiler", "second": "an older torch", "torch": None}}
    (sentence,) = agree([first_rank, second_rank], AUTO)
    assert sentence.endswith("torch takes the place of planted, which cannot run everywhere: no compiler, on rank 1")
    assert usable_backends("bias_gelu", "cpu") == ["torch"], "rank 0 would have run the second one"


def test_an_op_without_a_setting_of_its_own_is_not_given_one_in_the_remedy(monkeypatch):
    table = backend.BACKENDS["dropout"]
    monkeypatch.setitem(backend.BACKENDS, "dropout", (Backend("planted", table[-1].run, no_obstacle), *table))
    wrong = {("dropout", "planted"): "relative error of mask 1"}
    with pytest.raises(KernelError, match=r"^dropout: planted differs.*on rank 0\. Set ops\.unproven=fallback"):
        settle([wrong], AUTO, unproven="refuse", device=CPU)
    (sentence,) = settle([wrong], AUTO, unproven="fallback", device=CPU)
    assert sentence.startswith("dropout: torch takes the place of a kernel that is wrong here")


def test_plain_torch_and_ops_that_do_not_run_are_not_compared(plant):
    planted = plant(1.001)
    assert find_failures(CASES, {"bias_gelu": "torch"}, CPU) == {}
    assert find_failures(CASES, {}, CPU) == {}
    assert planted.calls == 0


def test_a_new_start_forgets_what_an_earlier_one_found(plant):
    plant(1.0)
    settle([WRONG], AUTO, unproven="fallback", device=CPU)
    assert disproved()
    assert find_failures(CASES, AUTO, CPU) == {}
    assert settle([{}], AUTO, unproven="fallback", device=CPU) == ()
    assert backend.disproved() == []
