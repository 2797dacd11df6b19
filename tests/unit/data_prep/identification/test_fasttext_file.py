"""Whatever a model file holds, it is read soundly or refused, and the library never gets a damaged one."""

import subprocess
import sys

import pytest
from support.fasttext_models import WORDS, lid_176, model_bytes

from data_prep.identification.fasttext_file import MAX_COUNT, read_labels
from megabert.foundation.errors import DataError

LOAD = """
import sys, fasttext
for path in sys.stdin.read().split():
    try:
        fasttext.load_model(path).predict("der whale baara")
    except (MemoryError, ValueError):
        pass
"""


@pytest.fixture
def model(tmp_path):
    def write(content):
        path = tmp_path / "lid.bin"
        path.write_bytes(content)
        return path

    return write


def test_labels_are_read_in_their_order(model):
    assert read_labels(model(model_bytes())) == tuple(WORDS)
    assert read_labels(model(model_bytes(form="{}_Latn", version=11))) == tuple(f"{code}_Latn" for code in WORDS)


def test_model_has_a_row_for_each_bucket_of_ngrams(model):
    assert read_labels(model(model_bytes(buckets=7))) == tuple(WORDS)
    with pytest.raises(DataError, match=r"a matrix has the shape \(38, 4\), and the dictionary needs \(39, 4\)"):
        read_labels(model(model_bytes(buckets=7, rows=38)))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"%PDF-1.7", "does not begin as one"),
        (b"1 2 3 4\n" * 100, "does not begin as one"),
        (model_bytes(kind=1), "holds word vectors and no labels"),
        (model_bytes(version=13), "does not begin as one"),
        (model_bytes({}), "its arguments are senseless"),
        (model_bytes(rows=10**12), "a matrix has the shape"),
        (model_bytes()[:-1], "its weights would take 64 bytes, and 63 are left"),
        (model_bytes() + b"x", "1 bytes follow its end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unfit_files_are_refused(model, content, says):
    path = model(content)
    with pytest.raises(DataError, match=says) as error:
        read_labels(path)
    assert str(error.value).startswith(f"language_model={path}: is no sound fastText model (")
    assert "Name a model file" in str(error.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.bin: No such file or directory\. Name a model file"):
        read_labels(tmp_path / "none.bin")
    with pytest.raises(DataError, match="it is a folder"):
        read_labels(tmp_path)


def test_damage_of_a_real_model_is_refused(model):
    content = lid_176().read_bytes()
    for damaged in (content[:1000], content[:-1], content + b"x", content[:66] + b"\1" + content[67:]):
        with pytest.raises(DataError, match="is no sound fastText model"):
            read_labels(model(damaged))


@pytest.mark.parametrize("count", [-1, MAX_COUNT, 1 << 62])
def test_count_of_a_label_that_a_tree_cannot_hold_is_refused(model, count):
    says = rf"label 3 of its dictionary has the count {count:,}, allowed are 0 to 999,999,999,999,999\)\. Name a"
    with pytest.raises(DataError, match=says):
        read_labels(model(model_bytes(loss=1, label_count=count)))


@pytest.mark.parametrize("count", [0, MAX_COUNT - 1])
def test_any_other_count_of_a_label_is_harmless(model, count):
    path = model(model_bytes(loss=1, label_count=count))
    assert read_labels(path) == tuple(WORDS)
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    subprocess.run([sys.executable, "-c", LOAD], input=str(path), text=True, check=True, capture_output=True)


@pytest.mark.parametrize("loss", [1, 3])
def test_damage_anywhere_is_refused_or_harmless(model, tmp_path, loss):
    content, accepted = model_bytes(loss=loss), []
    for end in range(len(content)):
        with pytest.raises(DataError):
            read_labels(model(content[:end]))
    weights = content.index(b"\0\0\0\0\0\0\0\0\0\0\0\0\0", content.index(b"__label__dyu"))
    for place in range(weights):
        for changed in (content[place] ^ 1, content[place] ^ 0x80):
            damaged = content[:place] + bytes([changed]) + content[place + 1 :]
            try:
                read_labels(model(damaged))
            except DataError:
                continue
            path = tmp_path / f"{place}-{changed}.bin"
            path.write_bytes(damaged)
            accepted.append(str(path))
    assert accepted  # a letter of a word may be another one
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    subprocess.run([sys.executable, "-c", LOAD], input="\n".join(accepted), text=True, check=True, capture_output=True)
