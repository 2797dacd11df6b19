"""Google's checkpoints, written here byte by byte as TensorFlow writes them."""

import json

import numpy as np
import pytest
import torch
from parity_models import make_batch as batch_for
from parity_models import make_tokenizer, randomize, run_ours, run_theirs
from transformers import BertConfig, BertForPreTraining

from megabert.errors import CheckpointError
from megabert.export.huggingface import read_huggingface
from megabert.export.sources import open_source
from megabert.models.bert import BertForPreTraining as OurBert
from megabert.models.convert import load_parameters

SIZES = {"vocab_size": 70, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def varint(number):
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def message(*fields):
    """A protocol buffer of (number, varint or bytes)."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def block(entries):
    """A block of a LevelDB table, keys shortened by what they share with the one before."""
    out, before = b"", b""
    for key, value in entries:
        shared = next(
            (i for i, (a, b) in enumerate(zip(key, before, strict=False)) if a != b), min(len(key), len(before))
        )
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return out + bytes(4) + (1).to_bytes(4, "little")


def write_bundle(stem, tensors):
    """Write an index of two blocks, and one data file."""
    data, entries = b"", [(b"", message((1, 1)))]
    for name, value in sorted(tensors.items()):
        array = np.asarray(value, "<f4")
        shape = message(*((2, message((1, size))) for size in array.shape))
        fields = [(1, 1), (2, shape), *([(4, len(data))] if data else []), (5, array.nbytes)]
        entries.append((name.encode(), message(*fields)))
        data += array.tobytes()
    table, handles = b"", []
    for part in (entries[: len(entries) // 2], entries[len(entries) // 2 :]):
        body = block(part)
        handles.append((part[-1][0], varint(len(table)) + varint(len(body))))
        table += body + bytes(5)  # no compression, checksum unread
    handle = varint(len(table)) + varint(len(body := block(handles)))
    table += body + bytes(5)
    footer = (varint(0) + varint(0) + handle).ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")
    stem.with_name(stem.name + ".index").write_bytes(table + footer)
    stem.with_name(stem.name + ".data-00000-of-00001").write_bytes(data)


def google_name(name):
    """transformers' name as google-research/bert's, and whether the matrix is turned."""
    for old, new in [
        ("cls.predictions.bias", "cls.predictions.output_bias"),
        ("cls.seq_relationship.weight", "cls.seq_relationship.output_weights"),
        ("cls.seq_relationship.bias", "cls.seq_relationship.output_bias"),
        ("embeddings.weight", "embeddings"),
        ("LayerNorm.weight", "LayerNorm.gamma"),
        ("LayerNorm.bias", "LayerNorm.beta"),
        ("layer.", "layer_"),
    ]:
        name = name.replace(old, new)
    is_kernel = name.endswith(".weight")
    return (name.removesuffix("weight") + "kernel" if is_kernel else name).replace(".", "/"), is_kernel


@pytest.fixture
def checkpoint(tmp_path):
    model = BertForPreTraining(BertConfig(**SIZES, max_position_embeddings=64)).eval()
    randomize(model)
    tensors = {"global_step": np.zeros(1), "bert/pooler/dense/kernel/adam_m": np.zeros(3)}
    for name, value in model.named_parameters():
        their_name, is_kernel = google_name(name)
        tensors[their_name] = value.detach().T.numpy() if is_kernel else value.detach().numpy()
    folder = make_tokenizer(tmp_path / "google", pad_id=0)
    write_bundle(folder / "bert_model.ckpt", tensors)
    (folder / "bert_config.json").write_text(json.dumps({**SIZES, "max_position_embeddings": 64, "type_vocab_size": 2}))
    return folder, model


def test_google_checkpoint_gives_the_logits_of_transformers(checkpoint):
    folder, theirs = checkpoint
    found = read_huggingface(folder)
    assert found.missing_head_names == []
    assert found.unused == {}
    model = OurBert(found.config)
    load_parameters(model, found.state)
    batch = batch_for(found.config)
    ours = run_ours(model, batch)
    for name, value in run_theirs(theirs, batch).items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5)
    assert open_source(str(folder)).build_model().config == found.config


def test_checkpoint_of_a_step_is_read_and_of_two_steps_refused(checkpoint):
    folder, _ = checkpoint
    for path in folder.glob("bert_model.ckpt.*"):
        path.rename(path.with_name(path.name.replace("bert_model.ckpt", "model.ckpt-1000")))
    assert read_huggingface(folder).missing_head_names == []
    (folder / "model.ckpt-2000.index").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"and one \*.ckpt\*.index"):
        read_huggingface(folder)


@pytest.mark.parametrize("cut", ["index", "data-00000-of-00001"])
def test_damaged_checkpoint_is_named(checkpoint, cut):
    folder, _ = checkpoint
    path = folder / f"bert_model.ckpt.{cut}"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt\.index: cannot be read"):
        read_huggingface(folder)


def test_narrower_embeddings_are_electras_generator(checkpoint):
    folder, _ = checkpoint
    path = folder / "bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "embedding_size": 16}))
    config = read_huggingface(folder, config_only=True).config
    assert (config.family, config.embedding_size, config.generator_size) == ("electra", 16, None)
