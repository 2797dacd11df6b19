"""The notebook is stored without outputs, uses the public API alone, and runs from its first cell to its last."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support.soak import in_soak

from megabert import library

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "examples" / "walkthrough.ipynb"
SHORTER = {'"steps": 300': '"steps": 150', "epochs=4": "epochs=3", '"adamw"': '"adamw", "model.num_hidden_layers": 1'}
LINK = re.compile(r"\]\(([^)#]+)")


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Return a folder like the notebook's."""
    (tmp_path / "corpus").symlink_to(NOTEBOOK.parent / "corpus")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook: nbformat.NotebookNode, call: str) -> str:
    """Return what the one cell with a call has printed."""
    (cell,) = (cell for cell in code_cells(notebook) if call in cell.source)
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")


def test_notebook_is_stored_without_outputs_in_cells_of_ten_lines_at_most(notebook):
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert not cell.outputs
        assert cell.execution_count is None
        assert len(cell.source.splitlines()) <= 10, cell.source


def test_notebook_imports_public_names_alone(notebook):
    nodes = list(ast.walk(ast.parse("\n".join(cell.source for cell in code_cells(notebook)))))
    plain = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names = {node.module: node.names for node in nodes if isinstance(node, ast.ImportFrom)}
    ours = [name for name in (*plain, *names) if name.split(".")[0] in ("megabert", "data_prep", "examples")]
    assert ours == ["megabert.library"]
    assert {name.name for name in names["megabert.library"]} <= set(library.__all__)


def test_links_of_the_notebook_lead_to_files(notebook):
    links = [link for cell in notebook.cells if cell.cell_type == "markdown" for link in LINK.findall(cell.source)]
    assert links
    assert not [link for link in links if not (NOTEBOOK.parent / link).is_file()]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shorter", [SHORTER, *in_soak({})])
def test_notebook_runs_from_text_to_a_classifier(shorter, notebook, folder, monkeypatch):
    """A cell that raises an error ends the run with that error."""
    for old, new in shorter.items():
        (cell,) = (cell for cell in code_cells(notebook) if old in cell.source)
        cell.source = cell.source.replace(old, new)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # set by every command, and other tests run some in this process
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()

    (train, held_out) = map(int, re.findall(r"'(?:train|validation)': (\d+)", printed(notebook, "build(")))
    assert train > held_out > 0
    scores = re.findall(r"^(\w+) +(\d\.\d+), baseline (\d\.\d+)$", printed(notebook, "evaluate("), re.MULTILINE)
    (_, loss, unigram_loss), (_, right, unigram_right) = scores
    assert float(loss) < float(unigram_loss)
    assert float(right) > float(unigram_right)

    pieces = printed(notebook, "model.tokenize(").split()[1::2]  # after the ids
    assert (pieces[0], pieces[-1]) == ("[CLS]", "[SEP]")
    assert "".join(pieces[1:-1]).replace("##", "") == "theunsinkableshipsailedoverthesea."
    assert len(re.findall(r"^\w+: \S+(?:, \S+){4}$", printed(notebook, "model.nearest("), re.MULTILINE)) == 3
    (cosine,) = re.findall(r"(-?\d\.\d\d) after the last", printed(notebook, "model.embed_tokens("))
    assert -1 <= float(cosine) < 1
    cosines = [float(number) for number in re.findall(r"-?\d\.\d*", printed(notebook, "model.embed("))]
    assert len(cosines) == 9
    assert cosines[::4] == [1, 1, 1]
    pictures = [output.data for cell in code_cells(notebook) for output in cell.outputs if "data" in output]
    assert [picture.keys() for picture in pictures] == [{"image/png", "text/plain"}] * 2

    assert len(re.findall(r"^ *\d+\.\d%  \S+$", printed(notebook, "model.fill_mask("), re.MULTILINE)) == 5
    assert len(re.findall(r"^ *[+-]\d+\.\d\d nats: ", printed(notebook, "model.score("), re.MULTILINE)) == 2

    accuracy, constant = map(float, re.findall(r"(\d+\.\d)%", printed(notebook, "fine_tune(")))
    assert 60 <= constant < 65
    assert constant + 10 <= accuracy <= 100
    assert len(re.findall(r"^(?:moby-dick|persuasion) \(\d+%\): ", printed(notebook, "predict("), re.MULTILINE)) == 2
