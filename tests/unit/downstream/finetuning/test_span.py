"""Windows over long contexts, answers back in the context's own characters, n best, no answer."""

import json
import random

import numpy as np
import pytest
from unit.downstream.finetuning.conftest import random_logits, sentence

from megabert.downstream.finetuning.task_kinds.span import Span, SpanQuestion
from megabert.downstream.finetuning.tasks import find_task
from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.config.finetune import FinetuneConfig


def question(context: str, answer: str, identity: str = "q", *, ask: str = "what is red ?") -> SpanQuestion:
    answers = ((context.index(answer), answer),) if answer else ()
    return SpanQuestion(line=1, where="t:1", identity=identity, question=ask, context=context, answers=answers)


def gold_logits(features, scale: float = 9.0) -> list[np.ndarray]:
    """Logits of a model that knows: high at each window's own targets."""
    logits = []
    for index, rows in enumerate(features.rows):
        one = np.zeros((rows, 2), np.float32)
        start, end = features.labels[index]
        one[start, 0] = one[end, 1] = scale
        logits.append(one)
    return logits


def test_span_learns(make_kind, learn):
    rng = random.Random(1)
    examples = [
        question(sentence(rng, ("cat", "ship", "dog")[i % 3], length=8), ("cat", "ship", "dog")[i % 3], str(i))
        for i in range(48)
    ]
    _, evaluation = learn(make_kind("squad", ("start", "end")), examples, steps=120)
    assert evaluation.metrics["exact"] > 0.9


@pytest.mark.parametrize("stride", [1, 4, 9, 100])
def test_known_answers_come_back_from_any_window(make_kind, stride):
    rng = random.Random(stride)
    kind = make_kind("squad", max_seq_length=24, doc_stride=stride)
    examples = []
    for index in range(30):
        words = sentence(rng, length=rng.randint(1, 40)).split()
        start = rng.randrange(len(words))
        stop = min(len(words), start + rng.randint(1, 3))
        words[start] = f"w{start}"  # several pieces, and nowhere else
        examples.append(question("  ".join(words), "  ".join(words[start:stop]), str(index)))
    features = kind.encode(examples, is_training=True)
    predictions = kind.predict(gold_logits(features), examples, features)
    held = {w.question for i, w in enumerate(features.origins) if features.labels[i, 0] > 0}
    assert len(held) > 20
    ends = [window.start + len(window.offsets) for window in features.origins]
    assert (features.labels[:, 1] < ends).all(), "an answer past the edge is no window's"
    for index in held:
        assert predictions[index]["answer"] == examples[index].answers[0][1]


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("the \u00c9t\u00e9s sat", "\u00c9t\u00e9s"),
        ("the E\u0301te\u0301 sat", "E\u0301te\u0301"),  # an accent of its own after the last letter
        ("\u0130stanbul was x\u200by .", "x\u200by"),  # a lower-case form of two characters, a space of no width
        ("\U0001f600 \ud55c\uad6d, \u4e2d\u56fd sat", "\u4e2d\u56fd"),
        ("the\r\n cat\tsat", "cat\tsat"),
    ],
)
def test_answers_are_the_contexts_own_characters(make_kind, context, answer):
    kind, example = make_kind("squad"), question(context, answer)
    features = kind.encode([example], is_training=True)
    (prediction,) = kind.predict(gold_logits(features), [example], features)
    assert prediction["answer"] == answer


def test_windows_cover_every_token_and_one_is_best_for_each(make_kind):
    kind = make_kind("squad", max_seq_length=20, doc_stride=5)
    windows = list(kind._windows(47, 4))
    room = 20 - 4 - 3
    assert [first for first, _, _ in windows] == [*range(0, 36, 5)]
    assert windows[-1][1] == 47
    best = np.zeros(47, int)
    for first, stop, is_best in windows:
        assert stop - first <= room
        best[first:stop] += is_best
    assert best.tolist() == [1] * 47


@pytest.mark.parametrize(("tokens", "stride"), [(0, 5), (1, 5), (13, 5), (47, 5), (100, 1), (100, 50)])
def test_best_window_is_that_of_the_whole_table(make_kind, tokens, stride):
    kind = make_kind("squad", max_seq_length=20, doc_stride=stride)
    windows = list(kind._windows(tokens, 4))
    index = np.arange(tokens)
    table = [
        np.where(
            (index >= first) & (index < stop), np.minimum(index - first, stop - 1 - index) + 0.01 * (stop - first), -1
        )
        for first, stop, _ in windows
    ]
    best = np.argmax(table, axis=0)
    for number, (first, stop, is_best) in enumerate(windows):
        assert is_best.tolist() == (best[first:stop] == number).tolist()


def test_answers_are_the_best_valid_pairs(make_kind):
    kind = make_kind("squad", max_answer_length=3, n_best=50)
    example = question("the cat sat on a mat .", "cat")
    features = kind.encode([example], is_training=False)
    (logits,) = random_logits(features, 2)
    (prediction,) = kind.predict([logits], [example], features)
    window = features.origins[0]
    shift = window.start
    expected = {}
    for s in range(len(window.offsets)):
        for e in range(s, min(s + 3, len(window.offsets))):
            text = example.context[window.offsets[s, 0] : window.offsets[e, 1]]
            expected[text] = max(expected.get(text, -99), float(logits[s + shift, 0] + logits[e + shift, 1]))
    ranked = sorted(expected, key=lambda text: -expected[text])
    assert [row["text"] for row in prediction["n_best"]] == ranked
    assert prediction["null_odds"] == pytest.approx(float(logits[0].sum()) - expected[ranked[0]], abs=1e-5)
    assert sum(row["probability"] for row in prediction["n_best"]) == pytest.approx(1)


def test_threshold_decides_whether_there_is_an_answer(make_kind, tmp_path):
    examples = [question("the cat sat .", "cat", "yes"), question("the dog sat .", "", "no")]
    kind = make_kind("squad2")
    features = kind.encode(examples, is_training=True)
    predictions = kind.predict(gold_logits(features), examples, features)
    metrics = kind.score(predictions, examples)
    assert (metrics["exact"], metrics["answerable_exact"], metrics["unanswerable_exact"]) == (1, 1, 1)
    kind.write(predictions, metrics, tmp_path / "p")
    assert json.loads((tmp_path / "p.json").read_text()) == {"yes": "cat", "no": ""}
    assert set(json.loads((tmp_path / "p_null_odds.json").read_text())) == {"yes", "no"}
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    shown = [
        (row["line"], row["id"], row["question"], row["answers"], row["prediction"], row["correct"]) for row in rows
    ]
    ask = examples[0].question
    assert shown == [(1, "yes", ask, ["cat"], "cat", True), (1, "no", ask, [], "", True)]
    assert kind.baseline(examples)["exact"] == 0.5, "no answer to either"
    strict = make_kind("squad2", null_threshold=-1e9)
    assert strict.score(predictions, examples)["exact"] == 0.5


def test_no_answer_stands_among_the_best_answers(make_kind):
    kind, plain = make_kind("squad2", n_best=12), make_kind("squad", n_best=12)
    example = question("the cat sat on a mat .", "cat")
    features = kind.encode([example], is_training=False)
    logits = random_logits(features, 2)
    (prediction,), (expected,) = (each.predict(logits, [example], features) for each in (kind, plain))
    for name in ("answer", "null_odds"):
        assert prediction[name] == expected[name]
    (none,) = [row for row in prediction["n_best"] if not row["text"]]
    assert (none["start_logit"], none["end_logit"]) == pytest.approx(tuple(logits[0][0]))
    texts = [row["text"] for row in prediction["n_best"]]
    assert [text for text in texts if text] == [row["text"] for row in expected["n_best"]]
    chances = [row["probability"] for row in prediction["n_best"]]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(1)


SQUAD = {"data": [{"paragraphs": [{"context": "the cat sat", "qas": [{"id": "q1", "question": "who ?"}]}]}]}


def squad_file(tmp_path, **fields):
    content = json.loads(json.dumps(SQUAD))
    content["data"][0]["paragraphs"][0]["qas"][0] |= fields
    (tmp_path / "t.json").write_text(json.dumps(content))
    return tmp_path / "t.json"


def test_squad_json_and_rows_give_the_same(tmp_path):
    path = squad_file(tmp_path, answers=[{"answer_start": 4, "text": "cat"}])
    row = {"id": "q1", "question": "who ?", "context": "the cat sat", "answers": {"text": ["cat"], "answer_start": [4]}}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    nested, flat = (Span.read(find_task("squad"), tmp_path / name)[0] for name in (path.name, "t.jsonl"))
    assert (nested.identity, nested.answers, nested.context) == (flat.identity, flat.answers, flat.context)


def test_columns_of_questions_may_have_other_names(tmp_path):
    row = {"id": "q1", "ask": "who ?", "text": "the cat", "gold": {"text": ["cat"], "answer_start": [4]}}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    settings = FinetuneConfig(model="m", data="d", text_column="ask", pair_column="text", label_column="gold")
    task = find_task("squad", settings)
    (example,) = Span.read(task, tmp_path / "t.jsonl")
    assert (example.question, example.context, example.answers) == ("who ?", "the cat", ((4, "cat"),))


@pytest.mark.parametrize(
    ("fields", "phrases"),
    [
        ({"answers": [{"answer_start": 5, "text": "cat"}]}, ["qas[0]", "'q1'", "'cat'", "character 5", "'at '"]),
        ({"answers": [{"answer_start": 90, "text": "cat"}]}, ["character 90"]),
        ({"answers": []}, ["has no answer", "squad2"]),
        ({}, ["qas[0]", "has no answer"]),
        ({"answers": [{"answer_start": "x", "text": "cat"}]}, ["answers.0.answer_start", "SQuAD's form"]),
        ({"answers": [{"answer_start": 4, "text": None}]}, ["qas.0.answers.0.text: Input should be a valid string"]),
        ({"answers": [{"answer_start": 4, "text": "cat"}], "question": None}, ["qas.0.question: Input should be"]),
    ],
)
def test_bad_question_is_named(tmp_path, fields, phrases):
    with pytest.raises(DataError) as caught:
        Span.read(find_task("squad"), squad_file(tmp_path, **fields))
    assert all(phrase in str(caught.value) for phrase in phrases), caught.value


def test_impossible_question_is_one_of_squad2(tmp_path):
    (example,) = Span.read(find_task("squad2"), squad_file(tmp_path, answers=[], is_impossible=True))
    assert example.answers == ()


def test_id_used_twice_is_named(tmp_path):
    row = {"id": 1, "question": "who ?", "context": "the cat", "answers": {"text": ["cat"], "answer_start": [4]}}
    (tmp_path / "t.jsonl").write_text(2 * (json.dumps(row) + "\n"))
    with pytest.raises(DataError, match=r"t.jsonl:2: id '1' is used twice"):
        Span.read(find_task("squad"), tmp_path / "t.jsonl")


def test_short_sequences_leave_room_for_the_context_or_are_refused(make_kind):
    one = question("the cat is red and the dog is blue", "red", ask="what is red and what is blue ?")
    features = make_kind("squad", ("start", "end"), max_seq_length=6).encode([one], is_training=True)
    assert max(features.rows) <= 6
    assert len(features.origins) >= 9
    with pytest.raises(ConfigError, match=r"max_seq_length=3: no token is left for a context. Take 4 or more"):
        make_kind("squad", ("start", "end"), max_seq_length=3).encode([one], is_training=True)
