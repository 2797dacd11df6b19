"""sentence-transformers loads an exported folder of every family, with the vectors of `megabert embed`."""

import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from support.parity_models import CASES, make_tokenizer, random_model, write

from megabert.downstream.export.sources import open_source
from megabert.downstream.export.vector_form import VectorForm
from megabert.downstream.inspection.embed import embed_file
from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.run_folder import export_again
from megabert.foundation.errors import ConfigError

TOLERANCE = 1e-5  # float32, absolute
LINES = ["a cab, a bee", "", "x", "the dog ate 12 figs. " * 9, "the sea"]
FAMILIES = {case.family: case for case in reversed(CASES)}


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """An exported model of each family, made when a test asks for it."""
    made = {}

    def folder_of(family):
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family) / "model"
            case = FAMILIES[family]
            tokenizer = make_tokenizer(made[family].with_name("tokenizer"), pad_id=1)
            write(random_model(case.config, case.objective), made[family], tokenizer)
        return made[family]

    return folder_of


@pytest.mark.parametrize("family", ["electra", "deberta-v3"])
def test_generator_within_keeps_its_class(family, folders, tmp_path):
    export_again(folders(family), tmp_path / "vectors", Forms(vectors="mean"))
    classes = [
        json.loads((folder / "generator" / "config.json").read_text())["architectures"]
        for folder in (folders(family), tmp_path / "vectors")
    ]
    assert classes[0] == classes[1]
    assert classes[0][0].endswith("ForMaskedLM")


def embedded(folder, tmp_path, pooling):
    """The vectors of `megabert embed`, a row or a list of rows for each line."""
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    source = open_source(str(folder))
    embed_file(
        source.build_model(),
        source.load_tokenizer(),
        tmp_path / "lines.txt",
        tmp_path / "vectors.parquet",
        form=VectorForm((pooling,)),
        batch_tokens=8192,
    )
    column = "embeddings" if pooling == "tokens" else "embedding"
    return [np.array(row, np.float32) for row in pq.read_table(tmp_path / "vectors.parquet")[column].to_pylist()]


@pytest.mark.parametrize("kind", ["mean", "cls"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sentence_vectors_equal_those_of_embed(family, kind, folders, tmp_path):
    export_again(folders(family), tmp_path / "vectors", Forms(vectors=kind))
    model = SentenceTransformer(str(tmp_path / "vectors"), device="cpu")
    expected = embedded(folders(family), tmp_path, kind)
    assert model.max_seq_length == FAMILIES[family].config.max_position_embeddings == 64
    vectors = model.encode(LINES, batch_size=3)
    assert np.abs(vectors - np.stack(expected)).max() < TOLERANCE
    assert np.abs(vectors[0] - vectors[4]).max() > 100 * TOLERANCE
    assert model.similarity_fn_name == "cosine"


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_token_vectors_are_those_of_embed_at_length_one(family, folders, tmp_path):
    export_again(folders(family), tmp_path / "vectors", Forms(vectors="colbert"))
    model = MultiVectorEncoder(str(tmp_path / "vectors"), device="cpu")
    vectors = [np.array(rows) for rows in model.encode(LINES, batch_size=3)]
    expected = embedded(folders(family), tmp_path, "tokens")
    assert [len(rows) for rows in vectors] == [len(rows) for rows in expected]
    assert len(vectors[1]) == 2  # [CLS] [SEP]
    assert len(vectors[3]) == 64  # cut to the positions of the model
    for rows, others in zip(vectors, expected, strict=True):
        assert np.abs(rows - others / np.linalg.norm(others, axis=1, keepdims=True)).max() < TOLERANCE
    scores = model.similarity(model.encode_query([LINES[0]]), model.encode_document([LINES[0]]))
    assert float(scores) == pytest.approx(len(vectors[0]), abs=1e-4)  # each token finds itself


def test_text_embeddings_inference_finds_its_fields(folders, tmp_path):
    """Fields that its router and its backend refuse to miss (router/src/lib.rs, backends/ort/src/lib.rs)."""
    export_again(folders("bert"), tmp_path / "vectors", Forms(vectors="cls"))
    pooling = json.loads((tmp_path / "vectors/1_Pooling/config.json").read_text())
    modes = {name.removeprefix("pooling_mode_"): value for name, value in pooling.items() if "mode" in name}
    assert modes == {"cls_token": True, "mean_tokens": False, "max_tokens": False, "mean_sqrt_len_tokens": False}
    assert json.loads((tmp_path / "vectors/sentence_bert_config.json").read_text())["max_seq_length"] == 64
    assert {"architectures", "model_type", "max_position_embeddings", "pad_token_id"} <= json.loads(
        (tmp_path / "vectors/config.json").read_text()
    ).keys()


def test_a_folder_is_exported_again_with_its_weights_and_card(folders, tmp_path):
    source = shutil.copytree(folders("electra"), tmp_path / "source")
    (source / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    for kind in ("mean", "colbert"):  # the second replaces the first, whose files go
        export_again(source, tmp_path / "out", Forms(vectors=kind))
    assert not (tmp_path / "out/1_Pooling").exists()
    assert (tmp_path / "out/README.md").read_text().endswith("# Mine\n")
    for name in ("model.safetensors", "generator/model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((tmp_path / "out/config.json").read_text()) == json.loads((source / "config.json").read_text())


def test_a_model_card_without_one_names_the_library(folders, tmp_path):
    source = shutil.copytree(folders("bert"), tmp_path / "source")
    (source / "README.md").unlink()
    export_again(source, tmp_path / "out", Forms(vectors="mean"))
    _, header, text = (tmp_path / "out/README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "sentence-transformers"
    assert "SentenceTransformer(" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sentence-transformers", "cls", "--license", "mit"], "--license has no effect on a Hugging Face folder"),
        (["--sentence-transformers", "max"], "--sentence-transformers"),
    ],
)
def test_flags_that_a_folder_has_no_use_for_are_refused(words, message, folders, tmp_path, megabert):
    said = megabert("export", folders("bert"), "--to", tmp_path / "out", *words, code=ConfigError.exit_code).err
    assert re.search(message, said)
    assert not (tmp_path / "out").exists()
