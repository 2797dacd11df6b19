from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sentence_transformers import SentenceTransformer

from megabert.cli import main
from megabert.data.batch import pack_sequences
from megabert.downstream.export.vector_form import VectorForm
from megabert.downstream.inspection import embed
from megabert.downstream.inspection.embed import check_output, embed_file, open_vectors, read_blocks
from megabert.foundation.errors import ConfigError, DataError

MEAN = {"form": VectorForm(), "batch_tokens": 8192}

LINES = ["the cat sat .", "", "the dogs sat", "the " * 40 + "dog", "cat", "a zebra sat", "  "]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def hidden_of(model, tokenizer, line):
    ids = [tokenizer.special_ids.cls, *tokenizer.encode(line)[:10], tokenizer.special_ids.sep]
    with torch.no_grad():
        return ids, model.eval().bert(pack_sequences([np.array(ids)]))[0].numpy()


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("batch_tokens", [1, 20, 8192])
def test_every_line_has_its_own_vector_in_its_row(pooling, suffix, batch_tokens, model, tokenizer, text):
    output = text.with_suffix(suffix)
    counts = embed_file(model, tokenizer, text, output, form=VectorForm((pooling,)), batch_tokens=batch_tokens)
    if suffix == ".npy":
        vectors = np.load(output)
        assert vectors.dtype == np.float32
    else:
        table = pq.read_table(output)
        assert table["line"].to_pylist() == list(range(1, len(LINES) + 1))
        vectors = np.array(table["embedding"].to_pylist(), np.float32)
    for row, line in zip(vectors, LINES, strict=True):
        _, hidden_SD = hidden_of(model, tokenizer, line)
        np.testing.assert_allclose(row, hidden_SD[0] if pooling == "cls" else hidden_SD.mean(0), atol=1e-5)
    assert (counts.lines, counts.truncated, counts.first_truncated) == (len(LINES), 1, 4)


def test_tokens_are_next_to_their_vectors(model, tokenizer, text, monkeypatch):
    monkeypatch.setattr(embed, "GROUP_BYTES", 4 * 16 * 12)  # several groups
    output = text.with_suffix(".parquet")
    counts = embed_file(model, tokenizer, text, output, form=VectorForm(("tokens",)), batch_tokens=16)
    rows = pq.read_table(output).to_pylist()
    assert pq.ParquetFile(output).num_row_groups > 1
    assert [row["line"] for row in rows] == list(range(1, len(LINES) + 1))
    assert rows[1]["tokens"] == rows[6]["tokens"] == ["[CLS]", "[SEP]"]
    assert rows[2]["tokens"] == ["[CLS]", "the", "dog", "##s", "sat", "[SEP]"]
    assert sum(len(row["tokens"]) for row in rows) == counts.tokens
    for row, line in zip(rows, LINES, strict=True):
        ids, hidden_SD = hidden_of(model, tokenizer, line)
        assert row["tokens"] == [tokenizer.pieces[index] for index in ids]
        np.testing.assert_allclose(row["embeddings"], hidden_SD, atol=1e-5)


def test_blocks_hold_every_line_once(tmp_path, monkeypatch):
    monkeypatch.setattr(embed, "BLOCK_BYTES", 64)
    monkeypatch.setattr(embed, "BLOCK_LINES", 3)
    lines = [f"line {number} " + "x" * (number % 50) for number in range(100)]
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff".encode() + "\r\n".join(lines).encode())  # a byte order mark, no newline at the end
    blocks = list(read_blocks(path))
    assert [line.text for block in blocks for line in block] == lines
    assert max(map(len, blocks)) == 3


def test_vectors_are_written_block_by_block(model, tokenizer, tmp_path, monkeypatch):
    written = []

    @contextmanager
    def spying_open(*arguments, **options):
        with open_vectors(*arguments, **options) as write:

            def spy(ids, vectors):
                written.append(len(vectors))
                assert all(array.base is None for array in vectors)  # no view of a whole batch
                write(ids, vectors)

            yield spy

    monkeypatch.setattr(embed, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(embed, "open_vectors", spying_open)
    path = tmp_path / "lines.txt"
    path.write_text("the cat sat .\n" * 500)
    embed_file(model, tokenizer, path, path.with_suffix(".npy"), **MEAN)
    assert np.load(path.with_suffix(".npy")).shape == (500, 16)
    assert sum(written) == 500
    assert max(written) <= 1024 // len("the cat sat .") + 1


@pytest.mark.parametrize(
    ("name", "pooling", "message"), [("x.csv", "mean", r"\.parquet or \.npy"), ("x.npy", "tokens", "Write to .parquet")]
)
def test_outputs_that_cannot_hold_the_vectors_are_refused(name, pooling, message):
    with pytest.raises(ConfigError, match=message):
        check_output(Path(name), has_tokens=pooling == "tokens")


def test_bad_input_is_named_by_line_and_leaves_nothing(model, tokenizer, tmp_path):
    path, output = tmp_path / "bad.txt", tmp_path / "bad.npy"
    path.write_bytes(b"the cat\n" * 5000 + b"the \xe9t\xe9\n")
    with pytest.raises(DataError, match=r"bad\.txt:5001: byte 5 of the line is not UTF-8"):
        embed_file(model, tokenizer, path, output, **MEAN)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        embed_file(model, tokenizer, path, output, **MEAN)
    with pytest.raises(DataError, match="cannot be read"):
        embed_file(model, tokenizer, tmp_path / "none.txt", output, **MEAN)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.txt", "tokenizer"]


def test_a_file_is_not_replaced_unless_it_is_named(model_folder, text, megabert):
    output = text.with_suffix(".parquet")
    output.write_text("mine")
    words = ["embed", str(text), "--model", str(model_folder)]
    assert f"{output}: exists, and would be replaced. If that is meant, say so: --output {output}" in " ".join(
        megabert(*words, code=2).err.split()
    )
    assert output.read_text() == "mine"
    megabert(*words, "--output", output)
    assert len(pq.read_table(output)) == len(LINES)


def test_command_gives_the_vectors_of_sentence_transformers(minilm_folder, tmp_path, capsys, megabert):
    path = tmp_path / "lines.txt"
    texts = ["The ship sails.", "A vessel is at sea!", "word " * 600]
    path.write_text("\n".join(texts))
    words = ["embed", str(path), "--model", str(minilm_folder), "--output", str(tmp_path / "x.npy")]
    assert main(words) == 0
    expected = SentenceTransformer(str(minilm_folder), device="cpu").encode(texts)  # 256 tokens, of length 1
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-5)
    capsys.readouterr()
    output = megabert(*words, "--pooling", "mean")
    assert f"1 of 3 lines were cut to the 512 tokens that the model reads; the first is {path}:3" in output.err
    assert "3 lines" in output.out
    megabert("embed", path, "--model", minilm_folder, "--output", path, code=2)
