"""Continued pre-training from somebody's BERT and from a run of our own."""

import json
import shutil

import pytest
from safetensors.torch import load_file
from support.bundled_corpus import CORPUS, build_shards
from support.runs import TINY, Run, finished

from megabert.checkpoints.loading import find_checkpoint, read_masters

# The sizes come from the source.
SHORT: dict[str, object] = {name: None for name in TINY if name.startswith("model.")}
SHORT |= {"phases.0.steps": 2, "phases.0.learning_rate": 1e-4, "phases.1.steps": 1, "phases.1.learning_rate": 1e-4}


def test_run_starts_from_another_runs_weights(shards, tmp_path):
    first = Run(tmp_path / "first", shards, flags={"phases.0.steps": 2, "phases.1.steps": 1})
    rows = first.finish_well()
    assert rows[0]["step"] == 1, "random weights are not scored"
    second = Run(tmp_path / "second", shards, flags={"phases.0.steps": 1, "phases.1.steps": 1})
    second.flags |= {**SHORT, "init-from": first.run_dir, "seed": 7, "phases.0.max_seq_length": 128}
    before, *later = second.finish_well()
    assert [row["step"] for row in later if "train/loss" in row] == [1, 2, 3]
    assert (before["step"], "train/loss" in before) == (0, False)
    for name in ("eval/mlm_loss", "eval/nsp_loss"):  # as its source was scored at its end, on the same shards
        assert before[name] == pytest.approx(rows[-1][name], rel=1e-5)
    last = read_masters(find_checkpoint(first.run_dir / "checkpoints", "last"))
    start = read_masters(find_checkpoint(second.run_dir / "checkpoints", 0))
    assert all(start[name].equal(tensor) for name, tensor in last.items())


@pytest.mark.soak
def test_published_modernbert_continues_on_another_vocabulary(corpus, tmp_path):
    import transformers

    kind = ("--objective", "none", "--masking", "dynamic", "--dupe-factor", "1", "--pieces", "byte_bpe")
    old = build_shards(corpus, tmp_path / "old", *kind)
    korean = tmp_path / "korean.jsonl"
    korean.write_text("".join((CORPUS.parent / "korean.jsonl").read_text("utf-8").splitlines(True)[:20]), "utf-8")
    new = build_shards(korean, tmp_path / "new", *kind, "--language", "ko")
    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = transformers.ModernBertConfig(
        vocab_size=1000, max_position_embeddings=128, local_attention=16, pad_token_id=1, **sizes
    )
    published = tmp_path / "published"
    transformers.ModernBertForMaskedLM(config).save_pretrained(published)
    shutil.copytree(old / "tokenizer", published, dirs_exist_ok=True)

    run = Run(tmp_path / "run", new, flags=SHORT | {"init-from": published, "model.family": "modernbert"})
    assert run.finish() == 3, run.output[-4000:]
    assert "--init-vocabulary transfer" in run.output
    run = finished(tmp_path / "second", new, flags=run.flags | {"init-vocabulary": "transfer"})
    assert "keep their rows" in run.output
    theirs = load_file(published / "model.safetensors")["model.embeddings.tok_embeddings.weight"]
    ours = read_masters(find_checkpoint(run.run_dir / "checkpoints", 0))["bert.embeddings.word_embeddings.weight"]
    vocabularies = [json.loads((folder / "tokenizer" / "vocab.json").read_text("utf-8")) for folder in (old, new)]
    shared = [(old_id, vocabularies[1][piece]) for piece, old_id in vocabularies[0].items() if piece in vocabularies[1]]
    assert 256 < len(shared) < 1000
    assert all(ours[new_id].equal(theirs[old_id]) for old_id, new_id in shared)
