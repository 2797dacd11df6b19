"""Models of which a command could show nothing true are refused."""

import json

import pytest
from safetensors.torch import load_file, save_file

COMMANDS = {
    "fill-mask": lambda folder, tmp_path: ["fill-mask", "--model", folder, "the [MASK] sat"],
    "similar": lambda folder, tmp_path: ["similar", "cat", "--model", folder],
    "embed": lambda folder, tmp_path: ["embed", tmp_path / "text", "--model", folder, "--output", tmp_path / "x.npy"],
    "pll": lambda folder, tmp_path: ["pll", tmp_path / "text", "--model", folder],
    "pairs": lambda folder, tmp_path: ["pairs", "english", "--model", folder],
    "attention": lambda folder, tmp_path: ["attention", "cat", "--model", folder, "--output", tmp_path / "x.html"],
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_tokenizer_of_another_model_is_refused(verb, model_folder, tmp_path, megabert):
    (tmp_path / "text").write_text("the cat\n")
    config = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(json.dumps({**config, "vocab_size": 999}))
    assert "the tokenizer has 14 pieces, the model 999" in megabert(*COMMANDS[verb](model_folder, tmp_path), code=3).err


@pytest.mark.parametrize("verb", ["fill-mask", "pll", "pairs"])
def test_model_without_a_masked_lm_head_guesses_nothing(verb, model_folder, tmp_path, megabert):
    (tmp_path / "text").write_text("the cat\n")
    weights = load_file(model_folder / "model.safetensors")
    encoder = {name: value for name, value in weights.items() if not name.startswith("cls.")}
    save_file(encoder, model_folder / "model.safetensors")
    output = megabert(*COMMANDS[verb](model_folder, tmp_path), code=4)
    assert "no head that guesses pieces (cls.predictions." in output.err
    assert not output.out
