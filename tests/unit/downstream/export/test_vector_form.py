"""The modules of a folder give the vectors of sentence-transformers, or are refused by name."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from support.parity_models import CASES, make_tokenizer, random_model, write

from megabert import library
from megabert.cli import main
from megabert.downstream.export.export_folder import EXPORTED
from megabert.downstream.export.vector_form import MODULES
from megabert.foundation.errors import CheckpointError, ConfigError, MegabertError

TOLERANCE = 1e-5  # float32, absolute
LINES = ["a cab, a bee", "", "x", "the dog ate 12 figs. " * 9, "The SEA"]
FAMILIES = {case.family: case for case in reversed(CASES)}
WIDTH = FAMILIES["bert"].config.hidden_size


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Exported models of two families."""
    folders = {}
    for family in ("bert", "roberta"):
        folders[family] = tmp_path_factory.mktemp(family) / "model"
        tokenizer = make_tokenizer(folders[family].with_name("tokenizer"), pad_id=1)
        write(random_model(FAMILIES[family].config, FAMILIES[family].objective), folders[family], tokenizer)
    return folders


def dense(inputs=WIDTH, outputs=5, activation=None, **options):
    return modules.Dense(inputs, outputs, activation_function=activation or torch.nn.Tanh(), **options)


LAYOUTS = {
    "cls, Normalize": ("cls", [modules.Normalize()]),
    "max": ("max", []),
    "mean, Dense": ("mean", [dense()]),
    "mean, Dense, Dense, Normalize": (
        "mean",
        [dense(activation=torch.nn.GELU(), bias=False), dense(5, 3, torch.nn.Identity()), modules.Normalize()],
    ),
    "mean, every activation": (
        "mean",
        [dense(activation=torch.nn.ReLU()), dense(5, 5, torch.nn.Sigmoid()), dense(5, 4, torch.nn.SiLU())],
    ),
    "residual": ("mean", [dense(use_residual=True), dense(5, 5, use_residual=True)]),
    "two poolings": (("max", "cls"), [modules.Dropout(0.5), dense(2 * WIDTH)]),
    "square root": ("mean_sqrt_len_tokens", []),
    "weighted": ("weightedmean", []),
    "last token": ("lasttoken", [modules.Normalize()]),
}


def save(encoder, folder, pooling, layers, **options):
    """Save what sentence-transformers makes of an encoder, and return the vectors of the saved folder."""
    first = modules.Transformer(str(encoder), max_seq_length=options.pop("max_seq_length", 16))
    torch.manual_seed(0)
    for layer in layers:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    parts = [first, modules.Pooling(WIDTH, pooling_mode=pooling), *layers]
    SentenceTransformer(modules=parts, device="cpu", **options).save(str(folder))
    return SentenceTransformer(str(folder), device="cpu").encode(LINES, batch_size=3)


def embedded(folder, *flags):
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    words = ["embed", str(folder / "lines.txt"), "--model", str(folder), "--output", str(folder.parent / "x.npy")]
    assert main([*words, *flags]) == 0
    return np.load(folder.parent / "x.npy")


@pytest.mark.parametrize(
    ("family", "layout", "kept"),
    [
        *(("bert", name, None) for name in LAYOUTS),
        ("roberta", "weighted", None),
        ("bert", "cls, Normalize", 2),
        ("bert", "mean, Dense", 2),
        ("bert", "two poolings", 99),
    ],
)
def test_modules_are_applied(family, layout, kept, encoders, tmp_path):
    expected = save(encoders[family], tmp_path / "model", *LAYOUTS[layout], truncate_dim=kept)
    vectors = embedded(tmp_path / "model")
    assert vectors.shape == expected.shape
    assert np.abs(vectors - expected).max() < TOLERANCE
    own = library.load_model(tmp_path / "model", device="cpu").embed(LINES[:3])
    assert np.abs(own - expected[:3]).max() < TOLERANCE


def test_the_longest_text_is_the_folders(encoders, tmp_path, capsys):
    expected = save(encoders["bert"], tmp_path / "model", "mean", [])
    assert np.abs(embedded(tmp_path / "model") - expected).max() < TOLERANCE
    assert "1 of 5 lines were cut to the 16 tokens that the model reads" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="text 4 of 5 has more tokens than the 16 that the model reads"):
        library.load_model(tmp_path / "model", device="cpu").embed(LINES)
    path = tmp_path / "model/sentence_bert_config.json"  # prevails over the tokenizer's, as in older folders
    path.write_text(json.dumps({"max_seq_length": 7, "do_lower_case": False}))
    expected = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(LINES)
    assert np.abs(embedded(tmp_path / "model") - expected).max() < TOLERANCE
    path.rename(path.with_name("sentence_xlm-roberta_config.json"))  # an older name
    assert np.abs(SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(LINES) - expected).max() == 0
    assert np.abs(embedded(tmp_path / "model") - expected).max() < TOLERANCE
    assert exported(tmp_path / "model", "mean") == 0
    assert json.loads((tmp_path / "out/sentence_bert_config.json").read_text())["max_seq_length"] == 7


def test_weights_of_modules_may_be_in_16_bits(encoders, tmp_path):
    expected = save(encoders["bert"], tmp_path / "model", "mean", [dense()])
    path = tmp_path / "model/2_Dense/model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    assert np.abs(embedded(tmp_path / "model") - expected).max() < 2e-2


def test_switches_of_older_versions_are_read(encoders, tmp_path):
    save(encoders["bert"], tmp_path / "model", "mean", [])
    old = {"word_embedding_dimension": WIDTH, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    (tmp_path / "model/1_Pooling/config.json").write_text(json.dumps(old))
    listed = json.loads((tmp_path / "model/modules.json").read_text())
    listed[1]["type"] = "sentence_transformers.models.Pooling"
    (tmp_path / "model/modules.json").write_text(json.dumps(listed))
    expected = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(LINES)
    assert expected.shape[1] == 2 * WIDTH
    assert np.abs(embedded(tmp_path / "model") - expected).max() < TOLERANCE


def test_a_default_prompt_is_put_in_front(encoders, tmp_path):
    options = {"prompts": {"query": "ask: ", "document": ""}, "default_prompt_name": "query"}
    expected = save(encoders["bert"], tmp_path / "model", "mean", [], **options)
    assert np.abs(embedded(tmp_path / "model") - expected).max() < TOLERANCE


def test_a_stated_pooling_is_the_encoders(encoders, tmp_path):
    save(encoders["bert"], tmp_path / "model", "cls", [modules.Normalize()])
    vectors = embedded(tmp_path / "model", "--pooling", "cls")
    differences = np.abs(vectors - embedded(encoders["bert"], "--pooling", "cls")).max(1)
    assert [index for index, difference in enumerate(differences) if difference >= TOLERANCE] == [3], "cut elsewhere"
    assert (np.linalg.norm(vectors, axis=1) > 1.01).all()


def change(folder, name, **fields):
    content = json.loads((folder / name).read_text())
    if isinstance(content, list):
        content[-1] |= fields
    else:
        content |= fields
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        *(
            ("modules.json", {"type": f"sentence_transformers.models.{name}"}, rf"module 2 is \S+models\.{name}")
            for name in sorted({name for name in dir(modules) if name[0].isupper()} - {"Dense", "Normalize", "Dropout"})
        ),
        ("modules.json", {"type": "pylate.models.Dense"}, r"module 2 is pylate\.models\.Dense"),
        ("modules.json", {"path": "../2_Dense"}, r"module 2 has the path '\.\./2_Dense'"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task='fill-mask'"),
        ("sentence_bert_config.json", {"query_length": 4}, "query_length is no field"),
        *(
            (file, {name: n}, f"{name}=")
            for file, name in (
                ("sentence_bert_config.json", "max_seq_length"),
                ("config_sentence_transformers.json", "truncate_dim"),
            )
            for n in ("16", 0, -1, 7.5, True, [])
        ),
        ("config_sentence_transformers.json", {"truncate_dims": 4}, "truncate_dims is no field .* truncate_dim"),
        *(
            (
                "config_sentence_transformers.json",
                {"default_prompt_name": "ask", "prompts": prompts},
                "'ask' is no prompt",
            )
            for prompts in (None, {"query": ""}, {"ask": 4})
        ),
        ("sentence_bert_config.json", {"do_lower_case": "false"}, "do_lower_case='false'"),
        ("2_Dense/config.json", {"use_residual": 1}, "use_residual=1"),
        ("2_Dense/config.json", {"activation_function": None}, "activation_function"),
        ("1_Pooling/config.json", {"pooling_mode": {"mean": True}}, "pooling_mode="),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode='median'"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.ELU"}, "ELU"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name='token_embeddings'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(name, fields, message, encoders, tmp_path):
    save(encoders["bert"], tmp_path / "model", "mean", [dense()])
    change(tmp_path / "model", name, **fields)
    model = library.load_model(tmp_path / "model", device="cpu")
    with pytest.raises(ConfigError, match=message):
        model.embed(LINES[:3])
    assert model.embed(LINES[:3], pooling="mean").shape == (3, WIDTH)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"])
def test_a_file_of_modules_that_links_to_nowhere_is_refused(name, encoders, tmp_path):
    save(encoders["bert"], tmp_path / "model", "cls", [])
    (tmp_path / "model" / name).unlink()
    (tmp_path / "model" / name).symlink_to(tmp_path / "blobs" / "none")
    with pytest.raises(MegabertError, match=name):
        library.load_model(tmp_path / "model", device="cpu").embed(LINES[:3])


def test_lower_case_is_the_tokenizers_or_refused(encoders, tmp_path):
    save(encoders["bert"], tmp_path / "model", "mean", [])
    change(tmp_path / "model", "sentence_bert_config.json", do_lower_case=True)
    expected = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(LINES)
    assert np.abs(embedded(tmp_path / "model") - expected).max() < TOLERANCE
    change(tmp_path / "model", "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(ConfigError, match="do_lower_case, but the tokenizer keeps case"):
        library.load_model(tmp_path / "model", device="cpu").embed(LINES[:3])


def test_weights_of_another_width_are_refused(encoders, tmp_path):
    save(encoders["bert"], tmp_path / "model", "mean", [dense()])
    change(tmp_path / "model", "1_Pooling/config.json", pooling_mode=["mean", "max"])
    with pytest.raises(CheckpointError, match=f"fit no Dense layer of {2 * WIDTH} inputs"):
        library.load_model(tmp_path / "model", device="cpu").embed(LINES[:3])


def exported(folder, kind, *flags):
    return main(["export", str(folder), "--to", str(folder.parent / "out"), "--sentence-transformers", kind, *flags])


@pytest.mark.parametrize("layout", ["cls, Normalize", "mean, Dense, Dense, Normalize"])
def test_an_export_keeps_the_modules(layout, encoders, tmp_path):
    expected = save(encoders["bert"], tmp_path / "model", *LAYOUTS[layout], truncate_dim=2)
    for _ in range(2):  # the second replaces the first
        assert exported(tmp_path / "model", layout.partition(",")[0]) == 0
    again = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert again.max_seq_length == 16
    assert np.abs(again.encode(LINES) - expected).max() < TOLERANCE
    assert np.abs(embedded(tmp_path / "out") - expected).max() < TOLERANCE


@pytest.mark.parametrize(
    ("layout", "words", "message"),
    [
        ("max", ["mean"], r"its modules give max, not mean. Export without --sentence-transformers"),
        ("cls, Normalize", ["mean"], "its modules give cls, not mean. Give --sentence-transformers cls"),
        ("cls, Normalize", ["cls", "--onnx"], "the ONNX form would lack the module Normalize"),
        ("cls", ["cls", "--onnx"], "the ONNX form would lack truncate_dim"),
    ],
)
def test_an_export_of_other_vectors_is_refused(layout, words, message, encoders, tmp_path, capsys):
    save(encoders["bert"], tmp_path / "model", *LAYOUTS.get(layout, (layout, [])), truncate_dim=5)
    assert exported(tmp_path / "model", *words) == ConfigError.exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_module_may_lie_in_an_export():
    for name in MODULES.keys() - {"SentenceTransformer", "Transformer"}:
        assert f"2_{name}/config.json" in EXPORTED
