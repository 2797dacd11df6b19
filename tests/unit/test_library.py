"""The public Python API: its list, its page, its results against transformers', its errors."""

import ast
import csv
import doctest
import inspect
import re
import shutil
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
import transformers
from support.bundled_corpus import small_corpus
from support.exported_models import write_english

from megabert import library
from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer
from megabert.library import CheckpointError, ConfigError, DataError, Model, fine_tune, load_model

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
USER = Path(__file__).parents[1] / "assets" / "user_of_the_library.py"
TEXTS = ["The ship sailed over the sea.", "", "It came back in the evening, they said."]
LABELLED = [("the whale rose", "sea"), ("the captain sailed", "sea"), ("the lady spoke", "land"), ("a garden", "land")]


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory) -> Path:
    return write_english(tmp_path_factory.mktemp("bert"), family="bert")


@pytest.fixture(scope="module")
def bert(bert_folder) -> Model:
    return load_model(bert_folder, device="cpu")


@pytest.fixture(scope="module")
def modern(tmp_path_factory) -> Model:
    return load_model(write_english(tmp_path_factory.mktemp("modern"), family="modernbert"), device="cpu")


@pytest.fixture
def labelled(tmp_path) -> Path:
    folder = tmp_path / "labelled"
    folder.mkdir()
    for name in ("train", "dev"):
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *LABELLED])
    return folder


def signature_of(function: ast.FunctionDef) -> str:
    arguments = re.sub("self(, )?", "", ast.unparse(function.args)).replace("=", " = ")
    called = "" if any(ast.unparse(one) == "property" for one in function.decorator_list) else f"({arguments})"
    return f"{function.name}{called} -> {ast.unparse(function.returns)}".replace("'Model'", "Model")


def public() -> list[str]:
    """Return a line for each public function, and for each class with its fields, and its methods."""
    lines = []
    for name in library.__all__:
        value = getattr(library, name)
        (node,) = ast.parse(dedent(inspect.getsource(value))).body
        assert ast.get_docstring(node), name
        if isinstance(node, ast.FunctionDef):
            lines.append(signature_of(node))
            continue
        shown = [] if issubclass(value, Exception) else node.body
        fields = [one.target.id for one in shown if isinstance(one, ast.AnnAssign)]
        methods = [one for one in shown if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
        assert all(map(ast.get_docstring, methods)), name
        lines.append(f"{name}: {', '.join(fields)}" if fields else name)
        lines += [f"{name}.{signature_of(one)}" for one in methods]
    return lines


def test_page_lists_all_public_names_with_their_signatures():
    section = PAGE.read_text().split("## All public names")[1]
    shown = re.search(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert shown[1].splitlines() == public(), "\n".join(public())


def test_the_users_file_has_every_public_name():
    """`make soak PART=test_wheel` checks its types against the installed wheel."""
    nodes = list(ast.walk(ast.parse(USER.read_text())))
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "megabert.library"]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert sorted(name.name for node in imported for name in node.names) == sorted(library.__all__)
    names = {re.split(r"\W", name)[0] for line in public() for name in re.split(r"[.,:] ?", line.partition("(")[0])}
    assert names - used == set()


def test_python_on_the_page_runs(bert_folder, labelled, monkeypatch, capsys):
    monkeypatch.chdir(labelled.parent)
    (labelled.parent / "english").symlink_to(bert_folder)
    names: dict = {}
    (labelled.parent / "texts").mkdir()
    small_corpus(labelled.parent / "texts")
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(block.replace("200", "2"), names)
    assert names["run"].is_done
    assert names["guesses"].examples > 0
    size = names["model"].embed_words(["ship"]).shape[1]
    assert (names["sentences"].shape, names["words"].shape) == ((2, size), (2, size))
    assert names["states"].shape == (len(names["model"].tokenize("The ship sailed.").ids), size)
    assert torch.allclose(names["shares"].sum(-1), torch.ones(names["shares"].shape[:-1]))
    assert set(names["judgement"].probabilities) == set(names["classifier"].labels) == {"land", "sea"}
    assert names["judgement"].label in capsys.readouterr().out


def test_examples_of_docstrings_give_what_they_show(labelled, monkeypatch, capsys):
    monkeypatch.chdir(labelled.parent)
    (labelled.parent / "texts").mkdir()
    small_corpus(labelled.parent / "texts")
    runner, finder = doctest.DocTestRunner(), doctest.DocTestFinder()
    for name in dict.fromkeys(["build", "pretrain", *library.__all__]):  # shards, a run, then all others
        for test in finder.find(getattr(library, name), name, globs=dict(vars(library))):
            runner.run(test)
    assert (runner.failures, runner.tries) == (0, 12), capsys.readouterr().out


def test_reference_shows_all_public_names():
    names = re.findall(r"^\.\. auto\w+:: (\w+)$", (PAGE.parent / "api.md").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(library.__all__)


@torch.no_grad()
def test_vectors_and_next_sentence_equal_transformers(bert_folder, bert):
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_folder)
    theirs = transformers.BertForPreTraining.from_pretrained(bert_folder).eval()
    states = [theirs.bert(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy() for text in TEXTS]
    for ours, state in zip(bert.embed_tokens(TEXTS), states, strict=True):
        np.testing.assert_allclose(ours, state, atol=1e-4)
    np.testing.assert_allclose(bert.embed(TEXTS), [state.mean(0) for state in states], atol=1e-4)
    np.testing.assert_allclose(bert.embed(TEXTS, pooling="cls"), [state[0] for state in states], atol=1e-4)
    pair = tokenizer(TEXTS[0], TEXTS[2], return_tensors="pt")
    assert bert.tokenize(TEXTS[0], TEXTS[2]).ids.tolist() == pair["input_ids"][0].tolist()
    probability = theirs(**pair).seq_relationship_logits.softmax(-1)[0, 0].item()
    assert bert.next_sentence(TEXTS[0], TEXTS[2]) == pytest.approx(probability, abs=1e-4)


def test_scores_are_those_of_the_command(bert_folder, bert):
    theirs = SentenceScorer(open_source(str(bert_folder)), mask="token").score(TEXTS)
    np.testing.assert_array_equal(bert.score(TEXTS, mask="token").scores_S, theirs.scores_S)
    assert bert.score([]).scores_S.shape == (0,)


def test_word_embeddings_are_the_rows_that_nearest_compares(bert):
    near = [one for one in bert.nearest("ship", top_k=50) if one.piece.isalpha()]
    assert near
    ship_D, *others_ND = bert.embed_words(["ship", *(one.piece for one in near)])
    cosines = [float(other @ ship_D / np.linalg.norm(other) / np.linalg.norm(ship_D)) for other in others_ND]
    assert cosines == pytest.approx([one.score for one in near], abs=1e-5)


def test_word_embeddings_are_as_wide_as_the_models_embeddings(tmp_path):
    albert = load_model(write_english(tmp_path, family="albert"), device="cpu")
    assert albert.embed(["the ship", "the sea"]).shape == (2, 32)
    assert albert.embed_words(["ship", "sea"]).shape == (2, 128)


def test_masks_are_guessed_after_other_calls(modern):
    before = modern.embed(TEXTS)
    guesses = modern.fill_mask("The [MASK] sailed over the [MASK].", top_k=4)
    assert [len(one) for one in guesses] == [4, 4]
    np.testing.assert_array_equal(modern.embed(TEXTS), before)


def test_head_that_the_weights_lack_is_refused_not_random(bert_folder, modern, tmp_path):
    with pytest.raises(ConfigError, match="modernbert was not trained on pairs"):
        modern.next_sentence("It sailed.", "It came back.")
    transformers.BertModel.from_pretrained(bert_folder).save_pretrained(tmp_path / "encoder")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bert_folder / name, tmp_path / "encoder")
    encoder = load_model(tmp_path / "encoder", device="cpu")
    with pytest.raises(CheckpointError, match=r"no head that guesses pieces \(cls.predictions"):
        encoder.fill_mask("The [MASK].")
    with pytest.raises(CheckpointError, match=r"no head for pairs of sentences \(cls.seq_relationship"):
        encoder.next_sentence("It sailed.", "It came back.")


@pytest.mark.parametrize("method", ["embed", "embed_tokens", "embed_words", "score"])
def test_one_text_in_place_of_a_list_is_refused(bert, method):
    with pytest.raises(ConfigError, match=r"'The ship\.' is one text. Give a list of texts"):
        getattr(bert, method)("The ship.")


@pytest.mark.parametrize(
    ("method", "arguments", "settings", "message"),
    [
        ("embed", [None], {}, r"texts=None \(NoneType\) is no list of texts"),
        ("embed", [["a", None]], {}, r"texts\[1\]=None \(NoneType\) is no text"),
        ("embed_tokens", [[b"x"]], {}, r"texts\[0\]=b'x' \(bytes\) is no text"),
        ("score", [{"a": 1}], {}, r"texts=\{'a': 1\} \(dict\) is no list"),
        ("score", [np.array("a")], {}, r"\(ndarray\) is no list"),
        ("score", [np.array([["a"]])], {}, r"texts\[0\]=.*\(ndarray\) is no text"),
        ("score", [["a"]], {"mask": "within_word"}, r"mask='within_word' \(str\) is not known.*within-word, token"),
        ("embed", [["a"]], {"pooling": "max"}, r"pooling='max' .* one of: cls, mean\."),
        ("embed", [["a"]], {"pooling": ["cls"]}, r"pooling=\['cls'\] \(list\)"),
        ("fill_mask", [["a [MASK]"]], {}, r"text=\['a \[MASK\]'\] \(list\) is no text"),
        ("fill_mask", ["The ship."], {}, r"the text 'The ship\.' has no \[MASK\] to fill"),
        ("fill_mask", ["a [MASK]"], {"top_k": 0}, r"top_k=0 \(int\) is no whole number of 1 or more"),
        ("nearest", ["ship"], {"top_k": 2.0}, r"top_k=2\.0 \(float\)"),
        ("nearest", ["ship"], {"top_k": True}, "top_k=True"),
        ("next_sentence", ["a", None], {}, r"second=None \(NoneType\) is no text"),
        ("tokenize", ["a", 7], {}, r"second=7 \(int\) is no text"),
    ],
)
def test_argument_of_another_type_or_value_is_refused_by_name(bert, method, arguments, settings, message):
    with pytest.raises(ConfigError, match=message):
        getattr(bert, method)(*arguments, **settings)


@pytest.mark.parametrize("as_given", [tuple, iter, np.array, lambda texts: np.array(texts, object)])
def test_texts_may_be_any_sequence_array_or_generator(bert, as_given):
    np.testing.assert_array_equal(bert.embed(as_given(TEXTS)), bert.embed(TEXTS))
    np.testing.assert_array_equal(bert.score(as_given(TEXTS)).scores_S, bert.score(TEXTS).scores_S)


@pytest.mark.parametrize("device", ["CPU", "mps", "", 0, None, torch.device("cpu")])
def test_device_that_the_commands_do_not_have_is_refused(bert_folder, device):
    with pytest.raises(ConfigError, match=r"device=.* is not known. Give one of: auto, cpu, cuda"):
        load_model(bert_folder, device=device)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("englsh", ConfigError, "englsh: neither a run folder .* nor a Hugging Face folder"),
        *(("", ConfigError, "is no path"), ("a\0b", ConfigError, "is no path")),
        ("x" * 5000, DataError, "File name too long"),
    ],
)
def test_name_that_is_no_model_or_no_path_is_refused(name, error, message):
    with pytest.raises(error, match=message):
        load_model(name)


def test_output_folder_without_a_name_is_refused(bert_folder, labelled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "labelled")
    with pytest.raises(ConfigError, match=r"output_dir='' \(str\) is no path"):
        fine_tune("classification", model=bert_folder, data=labelled, output_dir="", device="cpu")
    assert {path.name for path in Path.cwd().iterdir()} == {"train.csv", "dev.csv"}


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("clasification", {}, "classification"),
        ("classification", {"learning_rat": 1}, "learning_rate"),
        ("classification", {"doc_stride": 64}, "doc-stride has no effect"),
    ],
)
def test_task_or_setting_unknown_or_without_effect_is_refused(task, settings, message, bert_folder, labelled, tmp_path):
    with pytest.raises(ConfigError, match=message):
        fine_tune(task, model=bert_folder, data=labelled, output_dir=tmp_path / "out", device="cpu", **settings)
