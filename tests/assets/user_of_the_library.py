"""A user's file that has every public name of `megabert.library`, for a type checker: nobody runs it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from megabert.library import (
    AttentionRecord,
    Build,
    CheckpointError,
    Classifier,
    ConfigError,
    DataError,
    Judgement,
    MegabertError,
    Model,
    ModelScores,
    RankedPiece,
    Run,
    Scores,
    Summary,
    Tokens,
    build,
    evaluate,
    export,
    fine_tune,
    load_classifier,
    load_model,
    load_run,
    pretrain,
    resume,
)

Metrics = dict[str, dict[str, float]]


def on_step(step: int, row: Mapping[str, Any]) -> None:
    print(step, row["train/loss"])


def on_checkpoint(step: int, folder: Path) -> None:
    print(step, folder)


def train(texts: Sequence[str], folder: Path) -> Run:
    made = build(texts, output_dir=folder / "data", recipe="debug", workers=1, progress=True, vocab_size=1000)
    assert_type(made, Build)
    assert_type((made.folder, made.instances), tuple[Path, dict[int, dict[str, int]]])
    assert_type(made.warnings, tuple[str, ...])
    first = pretrain(
        Path("debug.yaml"),
        run_dir=folder / "run",
        device="cpu",
        on_step=on_step,
        on_validation=on_step,
        on_checkpoint=on_checkpoint,
        validation={"every_steps": 10},
    )
    try:
        run = resume(first.folder, progress=True)
    except CheckpointError as error:
        raise SystemExit(f"{first.folder}: {error}") from error
    assert_type(load_run("run"), Run)
    assert_type((run.config, run.checkpoints, run.best), tuple[dict[str, Any], tuple[int, ...], int | None])
    assert_type((run.is_done, run.table()), tuple[bool, list[dict[str, Any]]])
    assert_type(run.metric("train/loss"), tuple[NDArray[np.int64], NDArray[np.float64]])
    return run


def score(run: Run) -> ModelScores:
    model = export(
        run.folder, output_dir="model", checkpoint="best", weights="average", languages=["en"], license="mit"
    )
    scores = evaluate(model, data="text.txt", task="mlm", checkpoint="last", device="auto", text_column="body")
    assert_type((scores.task, scores.examples), tuple[str, int])
    assert_type((scores.scores, scores.baseline), tuple[dict[str, float], dict[str, float]])
    return scores


def look(name: str) -> AttentionRecord:
    model: Model = load_model(name, checkpoint="last", device="cuda")
    tokens = model.tokenize("first", "second")
    assert_type(tokens, Tokens)
    assert_type((tokens.pieces, tokens.ids), tuple[list[str], NDArray[np.int64]])
    assert_type(model.embed(["one"], pooling="cls"), NDArray[np.float32])
    assert_type(model.embed_tokens(["one"]), list[NDArray[np.float32]])
    assert_type(model.embed_words(["one"]), NDArray[np.float32])
    assert_type(model.nearest("ship", top_k=3), list[RankedPiece])
    best = model.fill_mask("a [MASK]", top_k=1)[0][0]
    assert_type((best.piece, best.score), tuple[str, float])
    scores = model.score(["one"], mask="token")
    assert_type(scores, Scores)
    assert_type((scores.scores_S, scores.counts_S), tuple[NDArray[np.float64], NDArray[np.int64]])
    assert_type(model.next_sentence("first", "second"), float)
    record = model.attention("first", "second")
    assert_type((record.pieces, record.segment_b_start), tuple[list[str], int])
    assert_type(
        (record.q_LNSH, record.k_LNSH, record.v_LNSH, record.context_LSD), tuple[Tensor, Tensor, Tensor, Tensor]
    )
    assert_type((record.is_seen_LSS(), record.scores(), record.probabilities()), tuple[Tensor, Tensor, Tensor])
    assert_type((record.reaches, record.kinds), tuple[tuple[int | None, ...], int])
    assert_type(record.position_scores_LNSS, Tensor | None)
    return record


def judge(texts: list[str]) -> list[Judgement]:
    try:
        summary = fine_tune("classification", model="english", data="labelled", output_dir=Path("runs"), epochs=2)
    except (ConfigError, DataError) as error:
        raise MegabertError("no judge", see=error.see) from error
    assert_type(summary, Summary)
    assert_type((summary.task, summary.learning_rate), tuple[str, float])
    assert_type((summary.seeds, summary.stuck_seeds, summary.best_seed), tuple[list[int], list[int], int])
    assert_type((summary.mean, summary.deviation, summary.baseline), tuple[Metrics, Metrics, Metrics])
    assert_type((summary.examples_per_s, summary.score, summary.score_deviation), tuple[float, float, float])
    assert_type((summary.shown("dev", "accuracy"), summary.score_shown), tuple[str, str])
    assert_type(summary.baseline_shown("dev", "accuracy"), str)
    classifier: Classifier = load_classifier(summary.best_model, device="cpu")
    assert_type(classifier.labels, tuple[str, ...])
    judgements = classifier.predict(texts, seconds=None)
    assert_type((judgements[0].label, judgements[0].probabilities), tuple[str, dict[str, float]])
    return judgements
