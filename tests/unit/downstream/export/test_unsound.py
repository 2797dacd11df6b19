"""Folders whose weights, links or names would give a wrong model or a harmful one."""

import fcntl
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.exported_models import CARD, model_of, write, write_huggingface
from transformers import BertForPreTraining

from megabert.downstream.export.huggingface import read_huggingface
from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.export.sources import open_source
from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.run_folder import export_again
from megabert.foundation.errors import CheckpointError, ConfigError, DataError
from megabert.foundation.whole_folders import UNFINISHED
from megabert.settings.config.model import ModelConfig


def change(folder, **weights):
    """Set or add weights; what is given is a function of the present one, None where there is none."""
    content = load_file(folder / "model.safetensors")
    for name, how in weights.items():
        content[name] = how(content.get(name))
    save_file(content, folder / "model.safetensors", {"format": "pt"})


WORDS = "bert.embeddings.word_embeddings.weight"
LAYER = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"another.head": lambda old: torch.full((2,), float("-inf"))}, "another.head holds NaN or infinite"),
        ({LAYER: lambda old: old.double() * 1e300}, f"{LAYER} holds NaN or infinite"),
        ({"bert.encoder.layer.0.output.LayerNorm.weight": lambda old: old * 0}, "would give the same"),
        ({LAYER: lambda old: old.to(torch.int8)}, "of type torch.int8"),
        ({"bert.encoder.layer.0.attention.self.key.weight": lambda old: old.to(torch.int8)}, "key.weight: its numbers"),
        ({"bert.encoder.layer.0.attention.self.key.weight": lambda old: old[:5]}, "key .5, 32."),
        ({WORDS: lambda old: old[:, :7].contiguous()}, "word_embeddings.weight: shape"),
    ],
)
def test_senseless_weights_are_refused_by_name(weights, message, exported):
    change(exported, **weights)
    with pytest.raises(CheckpointError, match=message):
        read_huggingface(exported)


def test_weights_that_are_not_used_are_named(exported, caplog):
    change(exported, **{"classifier.weight": lambda old: torch.ones(2, 32)})
    open_source(str(exported)).build_model()
    assert "not used here: classifier.weight" in caplog.text


def test_a_decoder_of_its_own_is_refused_where_masks_are_filled(exported):
    change(exported, **{"cls.predictions.decoder.weight": lambda old: torch.ones(69, 32)})
    source = open_source(str(exported))
    with pytest.raises(CheckpointError, match="tie_word_embeddings: false"):
        source.build_model(fills_masks=True)
    assert source.build_model().bert is not None  # vectors do not need it


def test_a_decoder_of_its_own_is_exported_with_its_bias(exported, tmp_path):
    change(
        exported,
        **{
            "cls.predictions.decoder.weight": lambda old: torch.randn(69, 32, generator=torch.manual_seed(0)),
            "cls.predictions.bias": lambda old: torch.arange(69.0),
        },
    )
    export_again(exported, tmp_path / "again", Forms())
    assert json.loads((tmp_path / "again/config.json").read_text())["tie_word_embeddings"] is False
    given, theirs = load_file(exported / "model.safetensors"), BertForPreTraining.from_pretrained(tmp_path / "again")
    decoder = theirs.cls.predictions.decoder
    assert torch.equal(decoder.weight, given["cls.predictions.decoder.weight"])
    assert torch.equal(decoder.bias, given["cls.predictions.bias"])
    assert not torch.equal(decoder.weight, theirs.bert.embeddings.word_embeddings.weight)


def test_rows_of_positions_that_no_token_reaches_are_kept(tokenizer_dir, tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = ModelConfig(family="roberta", vocab_size=69, max_position_embeddings=30, **sizes)
    write(tmp_path / "out", model_of(config), tokenizer_dir)
    name = "roberta.embeddings.position_embeddings.weight"
    change(tmp_path / "out", **{name: lambda old: torch.cat([torch.ones(1, 32), old[1:]])})
    state = read_huggingface(tmp_path / "out").state
    write_huggingface(tmp_path / "again", state=state, config=config, tokenizer_dir=tokenizer_dir, card=CARD)
    assert (load_file(tmp_path / "again/model.safetensors")[name][0] == 1).all()
    change(tmp_path / "out", **{name: lambda old: torch.cat([old, old])})
    with pytest.raises(CheckpointError, match="the weights have 62 positions"):
        read_huggingface(tmp_path / "out")


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 10**9},
        {"vocab_size": "auto"},
        {"hidden_act": ["gelu"]},
        {"model_type": {}},
        {"pad_token_id": "0"},
        {"architectures": 3},
        {"id2label": {"\u00b2": "good"}},
    ],
)
def test_senseless_settings_are_refused_by_name(changes, exported):
    path = exported / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=rf"config\.json: .*{next(iter(changes))}"):
        read_huggingface(exported)


def test_names_in_a_card_are_shown_as_they_are(config, tokenizer_dir, tmp_path):
    name = "<script>a</script> ![x](http://b) | `c` &lt;\n# d\x1b"
    card = ModelCard(name=name, recipe={"labels": name, name: 1})
    write(tmp_path / "out", model_of(config), tokenizer_dir, card=card)
    body = (tmp_path / "out/README.md").read_text().split("---\n", 2)[2]
    for mark in ("<script", "](", "`c`", "\x1b", "\n# d", "&lt;"):
        assert mark not in body
    assert "&#60;script>a&#60;/script> ![x]&#40;http://b) &#124; &#96;c&#96; &#38;lt; # d" in body


def test_links_are_not_followed_into_an_export(config, tokenizer_dir, tmp_path):
    (tmp_path / "private").write_text("secret")
    model = tmp_path / "model"
    write(model, model_of(config), tokenizer_dir)
    (model / "merges.txt").symlink_to(tmp_path / "private")
    with pytest.raises(DataError, match=r"merges\.txt: is a link to .*private, outside"):
        write(tmp_path / "out", model_of(config), model)
    # Hugging Face's cache is made of links.
    snapshot, blobs = tmp_path / "cache/snapshots/main", tmp_path / "cache/blobs"
    snapshot.mkdir(parents=True)
    (model / "merges.txt").unlink()
    model.rename(blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    write(tmp_path / "out", model_of(config), snapshot)
    assert not (tmp_path / "out/vocab.txt").is_symlink()


def test_what_a_killed_export_left_is_removed_and_nothing_else(config, tokenizer_dir, tmp_path):
    names = ("dead", "alive", "foreign")
    dead, alive, foreign = (tmp_path / f".out.{number:08x}.tmp" for number in range(3))
    for path, name in zip((dead, alive, foreign), names, strict=True):
        path.mkdir()
        (path / ("notes" if name == "foreign" else UNFINISHED)).touch()
    with open(alive / UNFINISHED, "r+b") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        write(tmp_path / "out", model_of(config), tokenizer_dir)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, foreign.name, "out"])


def test_what_an_export_would_delete_within_is_foreign_too(exported, config, tokenizer_dir):
    (exported / "generator").mkdir()
    (exported / "generator/notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds generator/notes\.txt"):
        write(exported, model_of(config), tokenizer_dir)
