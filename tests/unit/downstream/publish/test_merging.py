"""Merges: the arithmetic, models that do not fit, and the command with its scores."""

import json
import re
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from support.parity_models import CASES, make_tokenizer, random_model, write
from transformers import AutoModel

from megabert.downstream.export.model_folder import folder_and_checkpoint
from megabert.downstream.publish.merging import merge_parts, open_parts
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.models.build import initialize

CASE = CASES[0]
TEXT = "a cab ate a bee. the dog sat on 12 figs, 34 cabs.\n\n" * 20


def make_model(folder, *, scale=1.0, case=CASE, seed=None, extra=""):
    model = random_model(case.config, case.objective)
    if seed is not None:
        initialize(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    tokenizer = make_tokenizer(folder.with_name(f"{folder.name}-tokenizer"), pad_id=1)
    if extra:
        (tokenizer / "vocab.txt").write_text((tokenizer / "vocab.txt").read_text().replace("?", extra))
        (tokenizer / "tokenizer.json").unlink()
    write(model, folder, tokenizer)
    return str(folder)


def weights_of(name):
    return load_file(f"{name}/model.safetensors")


@pytest.mark.parametrize(
    ("weights", "shares"), [(None, (0.5, 0.5)), ((1, 2), (1 / 3, 2 / 3)), ((1, 0), (1, 0)), ((5, 15), (0.25, 0.75))]
)
def test_the_mean_is_weighted_and_summed_in_float64(weights, shares, tmp_path):
    parts = open_parts([make_model(tmp_path / "one"), make_model(tmp_path / "three", scale=3.0)], weights)
    one, three = (part.source.weights.read() for part in parts)
    for name, mean in merge_parts(parts).weights.read().items():
        expected = sum(share * value[name].double() for share, value in zip(shares, (one, three), strict=True))
        assert torch.equal(mean, expected.float())


def test_a_model_with_itself_is_itself_bit_for_bit(tmp_path, megabert):
    name = make_model(tmp_path / "one", seed=3)
    megabert("merge", name, name, "--to", tmp_path / "merged")
    merged, one = weights_of(tmp_path / "merged"), weights_of(name)
    assert merged.keys() == one.keys()
    assert all(torch.equal(merged[key], value) for key, value in one.items())


def test_scores_name_the_best_and_the_distance_to_it(tmp_path, megabert):
    names = [make_model(tmp_path / "calm", seed=1), make_model(tmp_path / "wild", scale=4.0)]
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["--to", str(tmp_path / "merged"), "--data.path", str(tmp_path / "text.txt"), "--device", "cpu"]
    lines = megabert("merge", *names, *words).out.splitlines()
    losses = {line.split()[0]: float(line.split()[1]) for line in lines[1:4]}
    assert losses.keys() == {*names, "merge"}
    best = min(losses, key=losses.__getitem__)
    assert best == names[0]
    assert lines[4].startswith(f"best on {tmp_path / 'text.txt'}: {best}; the merge is +")
    gap = float(re.search(r"the merge is (\S+) from", lines[4])[1])
    assert gap == pytest.approx(losses["merge"] - losses[best], abs=2e-4)
    assert f"held-out loss of merge | {losses['merge']:.4f}" in (tmp_path / "merged/README.md").read_text()


def test_a_model_that_is_named_twice_and_one_called_merge_have_scores_of_their_own(tmp_path, monkeypatch, megabert):
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "merge", seed=1), make_model(tmp_path / "one", scale=4.0)
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["--to", "merged", "--weights", "1", "2", "1", "--data.path", "text.txt", "--device", "cpu"]
    lines = megabert("merge", "merge", "one", "one", *words).out.splitlines()
    assert [re.split("  +", line)[0] for line in lines[1:5]] == ["merge (2)", "one", "one (2)", "merge"]
    card = (tmp_path / "merged/README.md").read_text()
    assert all(f"{name} | {share} of the mean" in card for name, share in (("one", "0.5000"), ("one (2)", "0.2500")))
    losses = [re.search(rf"held-out loss of {re.escape(name)} \| (\S+)", card)[1] for name in ("merge (2)", "merge")]
    assert losses == [lines[1].split()[-2], lines[4].split()[-2]]
    assert losses[0] != losses[1]


def test_a_folder_with_other_files_is_refused_before_the_scoring(tmp_path, megabert):
    one = make_model(tmp_path / "one")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["--to", str(tmp_path / "mine"), "--data.path", str(tmp_path / "text.txt"), "--device", "cpu"]
    output = megabert("merge", one, one, *words, code=2)
    assert "holds notes.txt" in output.err
    assert not output.out


def test_models_that_mean_other_things_are_refused_with_both_values(tmp_path):
    one = make_model(tmp_path / "one")
    other = make_model(tmp_path / "relu", case=CASES[1])
    with pytest.raises(ConfigError, match=r"hidden_act=gelu in \S+one and hidden_act=gelu_new in \S+relu"):
        open_parts([one, other])
    pieces = make_model(tmp_path / "pieces", extra="!")
    with pytest.raises(ConfigError, match=r"one has the tokenizer [0-9a-f]{12}, \S+pieces has [0-9a-f]{12} \(SHA-"):
        open_parts([one, pieces])


def test_fine_tuned_models_are_refused_since_their_head_would_be_lost(tmp_path):
    one = make_model(tmp_path / "one")
    path = tmp_path / "one" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(ConfigError, match=r"one: is a BertForSequenceClassification, and a merge has no head"):
        open_parts([one, one])


def test_the_shortest_trained_length_of_the_parts_is_stated(write_step, tmp_path, megabert):
    run_dir, longer = write_step(3), tmp_path / "longer"
    megabert("export", run_dir, "--to", longer)
    config, path = yaml.safe_load((run_dir / "config.yaml").read_text()), longer / "tokenizer_config.json"
    trained, positions = config["phases"][0]["max_seq_length"], config["model"]["max_position_embeddings"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": positions}))
    megabert("merge", longer, f"{run_dir}@3", "--to", tmp_path / "merged")
    assert json.loads((tmp_path / "merged/tokenizer_config.json").read_text())["model_max_length"] == trained
    assert f"{trained} trained, {positions} positions" in (tmp_path / "merged/README.md").read_text()


@pytest.mark.parametrize(
    "case", [CASES[0], next(case for case in CASES if "Electra" in case.head)], ids=lambda c: c.head
)
def test_encoders_without_heads_give_an_encoder(case, tmp_path, megabert):
    folder = tmp_path / "bare"
    make_model(folder, case=case)
    shutil.rmtree(folder / "generator", ignore_errors=True)
    kept = {name: value for name, value in weights_of(folder).items() if name.startswith((case.family, "bert."))}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    megabert("merge", folder, folder, "--to", tmp_path / "merged")
    model, info = AutoModel.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert model.config.architectures == [type(model).__name__]
    assert not any(info.values())
    assert "pipeline_tag: feature-extraction" in (tmp_path / "merged/README.md").read_text()


def test_models_with_modules_are_refused_since_their_vectors_would_be_lost(tmp_path):
    one = make_model(tmp_path / "one")
    (tmp_path / "one/modules.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"one: has modules\.json, and a merge has no modules"):
        open_parts([one, one])


def test_heads_that_one_model_lacks_are_named(tmp_path):
    one, bare = make_model(tmp_path / "one"), make_model(tmp_path / "bare")
    kept = {name: value for name, value in weights_of(bare).items() if not name.startswith("cls.seq")}
    save_file(kept, f"{bare}/model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"only \S+one has cls.seq_relationship.bias"):
        merge_parts(open_parts([one, bare]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("runs/a@40", ("runs/a", "40")),
        ("runs/a", ("runs/a", "last")),
        ("runs/a@best", ("runs/a", "best")),
        ("@4", ("@4", "last")),
        ("run@4", ("run@4", "last")),  # a folder of this very name
    ],
)
def test_a_checkpoint_is_part_of_a_name(name, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run@4").mkdir()
    assert folder_and_checkpoint(name) == expected
