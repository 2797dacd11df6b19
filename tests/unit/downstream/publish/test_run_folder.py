"""Exports of runs, and of folders that were exported before: what their cards say, which files they keep. Live runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from support.exported_models import write

from megabert.cli import main
from megabert.downstream.export.export_folder import EVAL_RESULTS
from megabert.downstream.export.sources import open_source
from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.run_folder import export_again, export_run
from megabert.foundation.errors import ConfigError
from megabert.library import load_model
from megabert.models.build import build_model, initialize


def test_the_card_states_the_software_of_the_training(write_step, tmp_path):
    assert export_run(write_step(3), tmp_path / "out") == 3
    software = (tmp_path / "out/README.md").read_text().split("## Software")[1]
    assert "| megabert | 0.9 |" in software
    assert "| torch | 2.11 |" in software


@pytest.mark.parametrize(
    ("init_from", "named"), [("/home/me/secret/my-bert", "my-bert"), ("owner/model", "owner/model")]
)
def test_the_card_names_the_base_model_and_only_settings_that_are_used(write_step, tmp_path, init_from, named):
    run_dir = write_step(3)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"init_from": init_from}))
    export_run(run_dir, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert f"| started from | {named} |" in card
    assert "secret" not in card
    assert "lamb_variant nvlamb" in card
    assert "muon" not in card
    assert "clip_both" not in card


def test_the_longest_trained_length_is_stated_everywhere(write_step, tmp_path):
    run_dir = write_step(3)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    trained, positions = config["phases"][0]["max_seq_length"], config["model"]["max_position_embeddings"]
    assert trained < positions
    export_run(run_dir, tmp_path / "out", forms=Forms(vectors="mean"))
    assert (
        f"| longest sequence | {trained} trained, {positions} positions |" in (tmp_path / "out/README.md").read_text()
    )
    stated = (("tokenizer_config", "model_max_length"), ("sentence_bert_config", "max_seq_length"))
    for name, field in stated:
        assert json.loads((tmp_path / f"out/{name}.json").read_text())[field] == trained
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"init_from": "owner/model"}))
    export_run(run_dir, tmp_path / "continued", forms=Forms(vectors="mean"))  # its first weights may know them all
    for name, field in stated:
        assert json.loads((tmp_path / f"continued/{name}.json").read_text())[field] == positions
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"init_from": str(tmp_path / "out")}))
    export_run(run_dir, tmp_path / "known", forms=Forms(vectors="mean"))  # they do not, as their folder states
    for name, field in stated:
        assert json.loads((tmp_path / f"known/{name}.json").read_text())[field] == trained
    export_again(tmp_path / "out", tmp_path / "again", Forms(vectors="mean"))
    assert json.loads((tmp_path / "again/sentence_bert_config.json").read_text())["max_seq_length"] == trained


def test_texts_are_as_long_as_the_model_was_trained_on(write_step, tmp_path, capsys, megabert):
    run_dir, output = write_step(3), ["--output", str(tmp_path / "vectors.npy")]
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    trained, positions = config["phases"][0]["max_seq_length"], config["model"]["max_position_embeddings"]
    export_run(run_dir, tmp_path / "out")
    path, text = tmp_path / "lines.txt", "cat " * trained
    path.write_text(f"{text}\n")
    for folder in (run_dir, tmp_path / "out"):
        assert (
            f"cut to the {trained} tokens that the model reads, as its run or its tokenizer states"
            in megabert("embed", path, "--model", folder, *output).err
        )
        model = load_model(folder, device="cpu")
        for look in (model.tokenize, model.attention, model.fill_mask):
            with pytest.raises(ConfigError, match=f"the model reads {trained} at most: its positions, or its longest"):
                look(f"{text} [MASK]")
        with pytest.raises(ConfigError, match=f"the model reads {trained} at most"):
            model.next_sentence(text, "cat")
        for vectors in (model.embed, model.embed_tokens):
            with pytest.raises(ConfigError, match=f"more tokens than the {trained} that the model reads"):
                vectors([text])
        assert model.score([text])[1].tolist() == [trained]
        assert f"longer than the {trained} tokens that the model reads" in megabert("pll", path, "--model", folder).err
    json_path = tmp_path / "scores.json"
    mlm = ["evaluate", "mlm", "--model", str(run_dir), "--data", str(path), "--json", str(json_path)]
    assert main(mlm) == 0
    assert json.loads(json_path.read_text())["max_seq_length"] == trained
    assert "was trained on" not in capsys.readouterr().err
    said = megabert(*mlm, "--max-seq-length", positions).err
    assert f"={positions}: the model was trained on {trained} tokens, as it states" in said
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"init_from": "owner/model"}))
    assert open_source(str(run_dir)).longest == positions


def test_all_looks_into_a_live_run_see_one_checkpoint(write_step):
    run_dir, texts = write_step(1), ["the cat sat", "a dog"]
    model = load_model(run_dir, device="cpu")
    before = model.embed(texts)
    write_step(2)
    assert model.fill_mask("the cat [MASK]")
    np.testing.assert_array_equal(model.embed(texts), before)
    assert not np.array_equal(load_model(run_dir, device="cpu").embed(texts), before)


def test_forms_that_are_not_named_again_are_refused(exported, tmp_path):
    vectors = tmp_path / "vectors"
    export_again(exported, vectors, Forms(vectors="cls"))
    with pytest.raises(ConfigError, match=r"vectors: has modules\.json, .* Give --sentence-transformers KIND again"):
        export_again(vectors, vectors, Forms())
    (vectors / "onnx").mkdir()
    (vectors / "onnx/model.onnx").write_bytes(b"graph")
    with pytest.raises(ConfigError, match=r"has onnx/model\.onnx, which the new export would lack\. Give --onnx again"):
        export_again(vectors, tmp_path / "out", Forms(vectors="cls"))
    with pytest.raises(ConfigError, match=r"modules\.json and onnx.* --sentence-transformers KIND and --onnx again"):
        export_again(vectors, tmp_path / "out", Forms())
    assert not (tmp_path / "out").exists()
    assert (vectors / "1_Pooling/config.json").is_file()


def test_scores_and_the_card_of_a_generator_are_kept(config, tokenizer_dir, tmp_path):
    model = build_model(replace(config, family="electra", generator_size=0.5))
    initialize(model, 0)
    write(tmp_path / "model", model, tokenizer_dir)
    texts = {"README.md": "# Mine\n", "generator/README.md": "# Mine, too\n", EVAL_RESULTS: "[]\n"}
    for name, text in texts.items():
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text(text)
    for source in ("model", "again"):  # the second time into the folder itself
        export_again(tmp_path / source, tmp_path / "again", Forms(vectors="mean"))
        assert {name: (tmp_path / "again" / name).read_text() for name in texts} == texts


def test_a_classifier_keeps_the_fields_of_its_head_and_without_a_card_gets_one_of_its_task(exported, tmp_path):
    path, identity = exported / "config.json", "torch.nn.modules.linear.Identity"
    fields = {
        **dict.fromkeys(("num_labels", "_num_labels"), 3),
        "sbert_ce_default_activation_function": identity,
        "sentence_transformers": {"activation_fn": identity, "version": "4.1.0"},
        "tokenizer_class": "BertTokenizer",
    }
    stated = json.loads(path.read_text()) | {"architectures": ["BertForSequenceClassification"], **fields}
    path.write_text(json.dumps(stated))
    (exported / "README.md").unlink()
    export_again(exported, tmp_path / "out", Forms())
    assert "pipeline_tag: text-classification" in (tmp_path / "out/README.md").read_text()
    kept = json.loads((tmp_path / "out/config.json").read_text())
    assert {name: kept.get(name) for name in fields} == fields
