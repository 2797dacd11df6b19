"""Every kind of task learns a small set; what is wrong with examples is named."""

import json
import random

import numpy as np
import pytest
from support.soak import in_soak
from unit.downstream.finetuning.conftest import FILLERS, random_logits, sentence

from megabert.downstream.finetuning.setup import read_examples
from megabert.downstream.finetuning.task_kinds.choice import Choice, ChoiceQuestion
from megabert.downstream.finetuning.task_kinds.sequence import Classification, LabelledText
from megabert.downstream.finetuning.task_kinds.span import Span
from megabert.downstream.finetuning.task_kinds.tagging import TaggedSentence, Tagging
from megabert.downstream.finetuning.tasks import find_task
from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.config.finetune import FinetuneConfig


def text_of(label, text="a", pair="b", *, line=1, where="dev.tsv:7"):
    return LabelledText(line=line, where=where, text=text, pair=pair, label=label)


def words_of(tokens, tags):
    return TaggedSentence(line=1, where="t:1", tokens=tuple(tokens), tags=tuple(tags))


def labelled(rng, count=48):
    words, labels = ("good", "bad"), ("yes", "no")
    return [text_of(labels[i % 2], sentence(rng, words[i % 2]), sentence(rng)) for i in range(count)]


def rated(rng, count=48):
    return [text_of(str(i % 4), sentence(rng, *["red"] * (i % 4)), None) for i in range(count)]


def swag_questions(rng, count=48):
    return [
        ChoiceQuestion(
            **{"line": 1, "where": "t:1", "context": sentence(rng), "start": "the", "label": i % 4},
            endings=tuple(sentence(rng, "ship" if k == i % 4 else "dog", length=3) for k in range(4)),
        )
        for i in range(count)
    ]


def tagged(rng, count=48):
    tags = {"cat": "B-ANIMAL", "ship": "B-THING"}
    sentences = [(*rng.choices([*FILLERS, "cat", "ship"], k=6), "\x00") for _ in range(count)]
    return [words_of(tokens, (tags.get(token, "O") for token in tokens)) for tokens in sentences]


CASES = {
    "classification": (labelled, ("no", "yes"), "accuracy"),
    "regression": (rated, ("score",), "spearman"),
    "swag": (swag_questions, ("0", "1", "2", "3"), "accuracy"),
    "tagging": (tagged, ("O", "B-ANIMAL", "B-THING"), "f1"),
}


@pytest.mark.parametrize("name", ["classification", "tagging", *in_soak("regression", "swag")])
def test_kind_learns(name, make_kind, learn):
    make, labels, metric = CASES[name]
    examples = make(random.Random(1))
    _, evaluation = learn(make_kind(name, labels), examples, steps=90)
    assert evaluation.metrics[metric] > 0.95
    assert len(evaluation.predictions) == len(examples)


def test_label_that_training_did_not_have_is_named(make_kind):
    kind = make_kind("classification", ("no", "yes"))
    with pytest.raises(DataError, match=r"dev.tsv:7: label 'maybe' is not one of those trained on: no, yes"):
        kind.encode([text_of("maybe", pair=None)], is_training=False)


@pytest.mark.parametrize("label", ["high", "1e39", "1e999", "nan", "1_0", "\u0664", "0x1"])
def test_number_that_is_none_is_named(label, make_kind):
    with pytest.raises(DataError, match=rf"dev.tsv:7: '{label}' is not a number"):
        make_kind("stsb", ("score",)).encode([text_of(label)], is_training=False)


def test_labels_are_sorted_as_numbers_where_they_are():
    rows = [text_of(label) for label in ("10", "9", "-1")]
    assert Classification.labels_of(rows) == ("-1", "9", "10")
    odd = [text_of(label) for label in ("\u00b2", "--1", "01", "1")]
    assert Classification.labels_of(odd) == ("--1", "01", "1", "\u00b2")
    assert Classification.labels_of(odd[2:]) == ("01", "1")  # equal numbers: the same order in every process
    with pytest.raises(DataError, match="every example has the label '9'"):
        Classification.labels_of(rows[1:2])


CONLL = "-DOCSTART- -X- O O\n\nthe DT B-NP O\ncat NN I-NP B-ANIMAL\n\na DT B-NP O\n"


def test_conll_columns_and_lists_give_the_same(tmp_path):
    (tmp_path / "t.conll").write_text(CONLL)
    rows = [{"tokens": ["the", "cat"], "tags": ["O", "B-ANIMAL"]}, {"tokens": ["a"], "tags": ["O"]}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = find_task("tagging")
    columns, lists = (Tagging.read(task, tmp_path / name) for name in ("t.conll", "t.jsonl"))
    assert [(e.tokens, e.tags) for e in columns] == [(e.tokens, e.tags) for e in lists]
    assert [e.where for e in columns] == [f"{tmp_path / 't.conll'}:3", f"{tmp_path / 't.conll'}:6"]
    assert Tagging.labels_of(columns) == ("O", "B-ANIMAL")


@pytest.mark.parametrize(("name", "kind", "file"), [("tagging", Tagging, "t.conll"), ("squad", Span, "t.json")])
def test_columns_of_a_file_without_names_are_refused(tmp_path, name, kind, file):
    (tmp_path / file).write_text(CONLL)
    with pytest.raises(ConfigError, match=rf"{file}: has no named columns, so --label-column ner means nothing"):
        kind.read(find_task(name, FinetuneConfig(model="m", data="d", label_column="ner")), tmp_path / file)


@pytest.mark.parametrize(
    ("name", "content", "phrase"),
    [
        ("t.conll", "the O\ncat\n", "t.conll:2: 'cat' has no tag"),
        ("t.conll", "\n\n", "holds no examples"),
        ("t.conll", "# text = x\n1\tThe\tDET\n2\tcat\tNOUN\n3\t.\tPUNCT\n\n", "its first column numbers the words"),
        ("t.conll", "#\thttp://x [2009]\n1\tDie\tO\tO\n2\tDB\tB-ORG\tO\n3\t.\tO\tO\n\n", "numbers the words"),
        ("t.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}\n', "found 2 values and 1 values"),
        ("t.jsonl", '{"tokens": "a b", "tags": ["O"]}\n', "must be lists"),
        ("t.jsonl", '{"tokens": ["a"], "tags": [null]}\n', "a value in column 'tags' is empty"),
    ],
)
def test_bad_tags_are_named(tmp_path, name, content, phrase):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        read_examples(find_task("tagging"), tmp_path / name)
    assert phrase in str(caught.value)


def test_numbers_are_words_after_the_first_sentence(tmp_path):
    (tmp_path / "t.conll").write_text("One O\n\n1 O\n2 O\n3 O\n\n")
    assert [one.tokens for one in read_examples(find_task("tagging"), tmp_path / "t.conll")][1] == ("1", "2", "3")


def test_conll_columns_end_at_spaces_and_tabs_alone(tmp_path):
    (tmp_path / "t.conll").write_bytes("\ufeff10\u00a0000 \tCD\tB-SUM\r\n\u3000 O\r\n \r\nall O\r\n".encode())
    first, second = Tagging.read(find_task("tagging"), tmp_path / "t.conll")
    assert (first.tokens, first.tags) == (("10\u00a0000", "\u3000"), ("B-SUM", "O"))
    with pytest.raises(DataError, match=r"t.conll: every token has the tag 'O'"):
        Tagging.labels_of([second])


def test_words_beyond_the_longest_sequence_are_predicted_outside(make_kind, tmp_path):
    kind = make_kind("tagging", ("O", "B-A"), max_seq_length=8)
    example = words_of(["cat"] * 9, ["B-A"] * 9)
    features = kind.encode([example], is_training=False)
    assert features.rows.tolist() == [6]
    logits = [np.tile(np.float32([0, 1]), (6, 1))]
    (row,) = kind.predict(logits, [example], features)
    assert row["prediction"] == ["B-A"] * 6 + ["O"] * 3
    row["tokens"] = ("New\n York", "", *row["tokens"][2:])  # as a table may have them
    kind.write([row], {}, tmp_path / "p")
    lines = (tmp_path / "p.conll").read_text().splitlines()
    assert lines == ["New_York B-A B-A", "_ B-A B-A", *["cat B-A B-A"] * 4, *["cat B-A O"] * 3]


def test_a_tag_stands_on_the_words_first_piece(make_kind, tokenizer):
    kind = make_kind("tagging", ("O", "B-A"))
    example = words_of(["catx", "\x00", "cat"], ["O", "O", "B-A"])
    features = kind.encode([example], is_training=True)
    pieces = [tokenizer.pieces[features.columns.input_ids[p]] for p in features.label_positions]
    assert pieces == ["cat", "[UNK]", "cat"]
    assert features.labels.tolist() == [0, 0, 1]


def test_swag_label_that_is_no_ending_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,4\n")
    with pytest.raises(DataError, match=r"t.csv:2: label '4' is not the number of an ending"):
        Choice.read(find_task("swag"), tmp_path / "t.csv")


def test_choice_probabilities_add_up(make_kind):
    questions = swag_questions(random.Random(1), 5)
    kind = make_kind("swag")
    features = kind.encode(questions, is_training=False)
    for row in kind.predict(random_logits(features, 1), questions, features):
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)


BASELINES = {
    # 5 of 8 are "no"; F1 is best if all are taken for the positive one: 2 * 3 / (3 + 8).
    "mrpc": ([*map(text_of, "11100000")], (5 / 8, 6 / 11)),
    "stsb": ([*map(text_of, "0123")], (0, 0)),
    "swag": (swag_questions(random.Random(0), 5), (2 / 5,)),
    "tagging": ([words_of(["cat", "sat", "on"], ["B-ANIMAL", "O", "O"])], (2 / 3, 0)),
}


@pytest.mark.parametrize("name", BASELINES)
def test_baseline_is_the_best_constant_answer(name, make_kind):
    examples, expected = BASELINES[name]
    labels = CASES["tagging"][1] if name == "tagging" else ("0", "1")
    baseline = make_kind(name, labels).baseline(examples)
    names = ("accuracy", "f1") if name in ("mrpc", "tagging") else baseline
    assert [baseline[metric] for metric in names] == pytest.approx(list(expected))


def test_regression_predictions_show_their_error(make_kind, tmp_path):
    kind, examples = make_kind("stsb"), rated(random.Random(1), 2)
    rows = kind.predict([np.array([[0.5]]), np.array([[2.5]])], examples, None)
    kind.write(rows, {}, tmp_path / "p")
    written = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [(row["line"], row["label"], row["error"]) for row in written] == [(1, 0.0, 0.5), (1, 1.0, 1.5)]
    assert written[0]["text"] == examples[0].text


@pytest.mark.parametrize("name", CASES)
def test_predictions_of_every_kind_carry_their_examples(name, make_kind, tmp_path):
    make, labels, _ = CASES[name]
    kind, examples = make_kind(name, labels), make(random.Random(2), 3)
    features = kind.encode(examples, is_training=False)
    rows = kind.predict(random_logits(features, kind.num_outputs), examples, features)
    kind.write(rows, {}, tmp_path / "p")
    written = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    for row, example in zip(written, examples, strict=True):
        shown = json.loads(json.dumps({**example.to_dict(), "label": row.get("label")}))
        assert {field: row.get(field) for field in shown} == shown
        assert row["line"] == 1
        assert "prediction" in row
        assert ("correct" in row) is (name != "regression")


def test_scores_of_named_labels_do_not_depend_on_the_order_in_a_model(make_kind):
    examples = [text_of(label, line=line) for line, label in enumerate("110100")]
    rows = [{"prediction": label, "probabilities": {"0": 0.5, "1": 0.5}} for label in "101110"]
    scores = [make_kind("mrpc", labels).score(rows, examples) for labels in (("0", "1"), ("1", "0"))]
    assert scores[0] == scores[1]
    assert scores[0]["f1"] == pytest.approx(4 / 7)


def test_tags_that_are_not_bio_have_their_accuracy_whatever_was_predicted(make_kind):
    example = words_of("ab", ["O", "B-A"])
    kind = make_kind("tagging", ("O", "B-A", "X"))
    for predicted in (["O", "B-A"], ["O", "X"]):
        assert kind.score([{"prediction": predicted}], [example]).keys() == {"accuracy"}
    assert kind.task.metrics_in({"accuracy": 1.0}) == ("accuracy",)
    assert kind.task.metrics_in({"accuracy": 1.0, "f1": 0.5}) == ("f1",)
