"""KLUE's seven sets: metrics by hand, files as KLUE's repository has them, and a run on each."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from unit.downstream.finetuning.conftest import sentence
from unit.downstream.finetuning.grid.test_grid import forked

from megabert.downstream.finetuning import metrics as measures
from megabert.downstream.finetuning.batches import Features
from megabert.downstream.finetuning.grid import grid as grid_module
from megabert.downstream.finetuning.task_kinds import TASK_KINDS
from megabert.downstream.finetuning.task_kinds.sequence import LabelledText
from megabert.downstream.finetuning.task_kinds.tagging import TaggedSentence
from megabert.downstream.finetuning.tasks import SUITES, find_task
from megabert.foundation.errors import DataError

# Metrics by hand.


def test_label_metrics_by_hand():
    # Class 0: 2 right, 3 in gold, 2 said: F1 = 2*2/(3+2) = 0.8. Class 1: 1 right, 2 and 3: 2/5 = 0.4. Class 2: 0 of 1.
    gold, said = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 1]
    assert measures.METRICS["macro_f1"](gold, said) == pytest.approx((0.8 + 0.4 + 0.0) / 3)
    # Deviations from the means 2.5 and 3: (-2.5, -0.5, 0.5, 2.5) and (-2, -1, 1, 2).
    # Sum of products 5 + 0.5 + 0.5 + 5 = 11; of squares 13 and 10: r = 11 / sqrt(130).
    gold, said = [0.0, 2.0, 3.0, 5.0], [1.0, 2.0, 4.0, 5.0]
    assert measures.METRICS["pearson"](gold, said) == pytest.approx(11 / math.sqrt(130))
    # Similar: gold T T T F, said T F T T. Right 2, gold 3, said 3: F1 = 4/6. 3 itself counts, 2.99 does not.
    assert measures.f1_of_similar([3.0, 4.0, 5.0, 2.99], [3.0, 2.99, 4.0, 3.5]) == pytest.approx(4 / 6)
    assert measures.f1_of_similar([1.0], [2.0]) == 0
    # Label 0 is no_relation. Of the others: said 1 1 2 2 (4), gold 1 2 2 (3), right: one 1 and one 2.
    # Precision 2/4, recall 2/3: F1 = 2*2/(4+3) = 4/7. The right no_relation counts for nothing.
    assert measures.micro_f1([1, 2, 2, 0, 0, 0], [1, 2, 0, 1, 2, 0]) == pytest.approx(4 / 7)
    assert measures.micro_f1([0, 0], [0, 0]) == 0


def test_sts_baseline_is_the_better_of_two_constant_numbers(make_kind):
    # All similar: 2 of 3 are right, all are said: F1 = 2*2/(2+3). A constant correlates with nothing.
    own = {"line": 1, "where": "a.json:1", "text": "a", "pair": "b"}
    examples = [LabelledText(label=label, **own) for label in ("3.5", "5", "0")]
    baseline = make_kind("klue_sts", ("score",)).baseline(examples)
    assert baseline == {"pearson": 0, "f1_of_similar": pytest.approx(4 / 5)}


def test_re_auprc_is_the_mean_of_areas_by_trapezoids():
    # Label 0 holds for the first example alone. In falling order of its probability: right, wrong, wrong: precision is
    # 1 at recall 1, so the area is 1. Label 1 holds for the second and third example, with the first scored between
    # them: 0.8 right, 0.5 wrong, 0.4 right. Points (recall, precision): (0, 1), (1/2, 1), (1/2, 1/2), (1, 2/3).
    # Area: 1/2 * 1 + 0 + 1/2 * (1/2 + 2/3) / 2 = 1/2 + 7/24 = 19/24. Label 2 has no example: 0.
    probabilities = [[0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.2, 0.4, 0.4]]
    assert measures.mean_auprc([0, 1, 1], probabilities) == pytest.approx((1 + 19 / 24 + 0) / 3)
    # All scores are equal, so the curve has two points, (0, 1) and (1, share): the area is (1 + share) / 2.
    assert measures.mean_auprc([0, 1, 1, 1], [[0.0, 1.0]] * 4) == pytest.approx(((1 + 1 / 4) / 2 + (1 + 3 / 4) / 2) / 2)


def test_ner_metrics_by_hand():
    gold = [["B-PS", "I-PS", "O", "B-LC"], ["B-PS", "O"], ["B-DT", "I-DT"]]
    said = [["B-PS", "I-PS", "O", "B-OG"], ["B-PS", "I-PS"], ["I-DT", "I-DT"]]
    # PS: gold 2, said 2, right 1 (the second is longer): 2*1/4 = 1/2. LC: gold 1, said 0: 0. OG: gold 0, said 1: 0.
    # DT: gold 1; said none, since I- begins nothing: 0. Four types: 1/8.
    assert measures.entity_macro_f1(gold, said) == pytest.approx(1 / 8)
    # B-PS: 1 right, gold 1, said 2: 2/3. I-PS: 1, 2, 1: 2/3. O: 1, 1, 1: 1. B-LC is nowhere: 1, as in the script.
    gold, said = [["B-PS", "I-PS", "I-PS", "O"]], [["B-PS", "B-PS", "I-PS", "O"]]
    assert measures.tag_macro_f1(gold, said, ["B-PS", "I-PS", "B-LC", "O"]) == pytest.approx(
        (2 / 3 + 2 / 3 + 1 + 1) / 4
    )


def test_mrc_rouge_w_is_of_the_longest_common_run():
    # "abcde" and "xbcdy": the run "bcd" has 3. Precision 3/5, recall 3/5: F1 = 6/10.
    assert measures.rouge_w("abcde", "xbcdy") == pytest.approx(6 / 10)
    # A subsequence with a gap counts as its longest part: "ab" of "abxd", 2*2/(4+4).
    assert measures.rouge_w("abxd", "abyd") == pytest.approx(4 / 8)
    assert (measures.rouge_w("", ""), measures.rouge_w("a", ""), measures.rouge_w("", "a")) == (1, 0, 0)


def test_mrc_answers_take_the_best_of_several_and_none_is_an_answer():
    gold = {"1": ["the sea", "sea"], "2": [], "3": ["ship"], "4": []}
    said = {"1": "The sea.", "2": "", "3": "ships", "4": "ship"}
    # Exact: 1 (case and point are nothing, articles stay), 1, 0, 0. ROUGE-W: 1, 1, 2*4/(5+4), 0.
    scores = measures.score_klue_answers(said, gold)
    assert scores == {"exact": 2 / 4, "rouge_w": pytest.approx((1 + 1 + 8 / 9 + 0) / 4)}


def test_mrc_keeps_the_marks_that_the_script_keeps():
    assert measures.normalize_klue(" \u300aA\u300b, 'b'  (c)") == "\u300aa\u300b b c"
    assert measures.normalize_klue("x'()\u2018\u2019y") == "x y", "its pattern matches only this"


def test_korquad_counts_characters_and_drops_marks():
    # Gold of 4 characters, said 6 of which 4 are shared: F1 = 2*4/(6+4). The marks are nothing.
    gold = {"1": ["\uc138\uc885\ub300\uc655"]}
    scores = measures.score_answers({"1": "\u300a\uc138\uc885 \ub300\uc655\u300b\uc740\uc694"}, gold, "ko")
    assert scores == {"exact": 0, "f1": pytest.approx(8 / 10)}
    assert measures.score_answers({"1": "\u2018\uc138\uc885\ub300\uc655\u2019"}, gold, "ko") == {"exact": 1, "f1": 1}


# Files in the official layout. The vocabulary of these tests is English, so the texts are.

RELATIONS = ("no_relation", "per:title", "org:product")


def _dump(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=4), encoding="utf-8")


def _ynat(rng, i):
    words = ("cat", "ship")
    other = {"predefined_news_category": "x", "annotations": {"annotators": ["1"], "annotations": {}}, "url": "u"}
    return {"guid": f"ynat-v1_train_{i:05}", "title": sentence(rng, words[i % 2]), "label": ("A", "B")[i % 2], **other}


def _sts(rng, i):
    labels = {"label": 4.9 * (i % 2), "real-label": 4.857142857142857 * (i % 2), "binary-label": i % 2}
    texts = {"sentence1": sentence(rng, ("good", "bad")[i % 2]), "sentence2": sentence(rng)}
    return {"guid": f"klue-sts-v1_train_{i:05}", "source": "s", **texts, "labels": labels, "annotations": {}}


def _nli(rng, i):
    label = ("entailment", "contradiction", "neutral")[i % 3]
    texts = {"premise": sentence(rng), "hypothesis": sentence(rng, ("red", "blue", "fine")[i % 3])}
    return {"guid": f"klue-nli-v1_train_{i:05}", **texts, "gold_label": label, "author": label, "label2": label}


def _entity(text, word):
    start = text.index(word)
    return {"word": word, "start_idx": start, "end_idx": start + len(word) - 1, "type": "PER"}


def _re(rng, i):
    text = sentence(rng, "who", "dog")
    entities = {"subject_entity": _entity(text, "dog"), "object_entity": _entity(text, "who")}
    return {"guid": f"klue-re-v1_train_{i:05}", "sentence": text, **entities, "label": RELATIONS[i % 3], "source": "s"}


def _ner(rng, i):
    text = sentence(rng, "cat")
    start = text.index("cat")
    tags = ["B-PS" if k == start else "I-PS" if start < k < start + 3 else "O" for k in range(len(text))]
    lines = [f"## klue-ner-v1_train_{i:05}-wikitree\t{text.replace('cat', '<cat:PS>')}"]
    return "\n".join([*lines, *(f"{character}\t{tag}" for character, tag in zip(text, tags, strict=True))])


def _question(rng, i, identity):
    text = sentence(rng, "red", length=12)
    answers = [{"text": "red", "answer_start": text.index("red")}]
    is_impossible = identity == "guid" and i % 3 == 0
    own = {"question_type": 3, "is_impossible": True, "answers": [], "plausible_answers": answers}
    row = own if is_impossible else {"question_type": 1, "is_impossible": False, "answers": answers}
    row = row if identity == "guid" else {"answers": answers}
    qas = [{identity: f"q{i}", "question": "what red", **row}]
    return {"title": "t", "paragraphs": [{"context": text, "qas": qas}]}


NER_HEAD = "## \ud1a0\ud070, \ub808\uc774\ube14 \uad6c\ubd84\uc790 : \\t\n## \uc8fc\uc11d : ##\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("klue_benchmark")
    for seed, (part, count) in enumerate({"train": 48, "dev": 18}.items()):
        rng = random.Random(seed)
        for name, row in {"ynat": _ynat, "klue-sts": _sts, "klue-nli": _nli, "klue-re": _re}.items():
            _dump(folder / f"{name}-v1.1" / f"{name}-v1.1_{part}.json", [row(rng, i) for i in range(count)])
        _dump(folder / "klue-re-v1.1" / "relation_list.json", {"relations": list(RELATIONS)})
        (folder / "klue-ner-v1.1").mkdir(exist_ok=True)
        sentences = "\n\n".join(_ner(rng, i) for i in range(count))
        (folder / "klue-ner-v1.1" / f"klue-ner-v1.1_{part}.tsv").write_text(f"{NER_HEAD}{sentences}\n\n", "utf-8")
        mrc = {"version": "1.1", "data": [_question(rng, i, "guid") for i in range(count)]}
        _dump(folder / "klue-mrc-v1.1" / f"klue-mrc-v1.1_{part}.json", mrc)
        korquad = {"version": "KorQuAD_v1.0_train", "data": [_question(rng, i, "id") for i in range(count)]}
        _dump(folder / "KorQuAD" / f"KorQuAD_v1.0_{part}.json", korquad)
    return folder


def read(name: str, path: Path):
    task = find_task(name)
    return TASK_KINDS[task.kind].read(task, path)


def test_rows_are_read_as_they_are_written(data):
    (ynat, *_) = read("ynat", data / "ynat-v1.1" / "ynat-v1.1_train.json")
    assert (ynat.identity, ynat.label) == ("ynat-v1_train_00000", "A")
    (_, sts, *_) = read("klue_sts", data / "klue-sts-v1.1" / "klue-sts-v1.1_train.json")
    assert (sts.label, sts.line) == ("4.857142857142857", 2), "the mean of the annotators, not the rounded one"
    (nli, *_) = read("klue_nli", data / "klue-nli-v1.1" / "klue-nli-v1.1_train.json")
    assert (nli.label, nli.pair is None) == ("entailment", False)
    mrc = read("klue_mrc", data / "klue-mrc-v1.1" / "klue-mrc-v1.1_train.json")
    assert [(row.identity, len(row.answers)) for row in mrc[:2]] == [("q0", 0), ("q1", 1)]


def test_relation_marks_both_entities(tmp_path):
    text = "the cat of who"
    row = {"sentence": text, "label": "per:title", "subject_entity": _entity(text, "who")}
    _dump(tmp_path / "a.json", [{**row, "object_entity": _entity(text, "cat")}])
    (example,) = read("klue_re", tmp_path / "a.json")
    assert example.text == "the <obj>cat</obj> of <subj>who</subj>"
    assert len(find_task("klue_re").labels) == 30


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start_idx": 3}, "subject_entity: 'who' is not at characters 3 to 13"),
        ({"end_idx": "13"}, "subject_entity: 'who' is not at characters 11 to '13'"),
        ({"word": 7}, "subject_entity: 7 is not at"),
        ({"word": "cat of who", "start_idx": 4}, "subject_entity and object_entity overlap"),
        ({"start_idx": True}, "subject_entity: 'who' is not at characters True"),
    ],
)
def test_entity_that_is_elsewhere_is_named(tmp_path, change, says):
    text = "the cat of who"
    row = {"sentence": text, "label": "per:title", "subject_entity": _entity(text, "who") | change}
    _dump(tmp_path / "a.json", [{**row, "object_entity": _entity(text, "cat")}])
    with pytest.raises(DataError, match=f"a.json:1: {says}"):
        read("klue_re", tmp_path / "a.json")


def test_characters_have_their_tags_and_spaces_count_for_nothing(data, make_kind):
    path = data / "klue-ner-v1.1" / "klue-ner-v1.1_train.tsv"
    examples = read("klue_ner", path)
    assert len(examples) == 48
    assert examples[0].identity == "klue-ner-v1_train_00000-wikitree"
    assert "".join(examples[0].tokens).count("cat") == 1
    kind = make_kind("klue_ner", find_task("klue_ner").labels)
    gold = [
        {"prediction": ["B-LC" if c == " " else t for c, t in zip(e.tokens, e.tags, strict=True)]} for e in examples
    ]
    assert kind.score(gold, examples) == {"entity_macro_f1": 1, "char_macro_f1": 1}


@pytest.mark.parametrize("line", ["cat\tO", "c", "c\t", "\tO\tO"])
def test_broken_line_of_characters_is_named(tmp_path, line):
    (tmp_path / "a.tsv").write_text(f"## id\tc a\nc\tO\n{line}\n")
    with pytest.raises(DataError, match=r"a.tsv:3: .* is not a character, a tab and its tag"):
        read("klue_ner", tmp_path / "a.tsv")


def test_piece_learns_its_first_characters_tag_and_passes_it_on(make_kind, learn, data):
    examples = read("klue_ner", data / "klue-ner-v1.1" / "klue-ner-v1.1_train.tsv")
    kind = make_kind("klue_ner", find_task("klue_ner").labels)
    _, (predictions, metrics) = learn(kind, examples, steps=40)
    assert metrics["entity_macro_f1"] == 1
    assert predictions[0]["prediction"] == list(examples[0].tags)


def test_characters_beyond_the_longest_sequence_are_outside(make_kind, data):
    (example, *_) = read("klue_ner", data / "klue-ner-v1.1" / "klue-ner-v1.1_train.tsv")
    kind = make_kind("klue_ner", find_task("klue_ner").labels, max_seq_length=4)
    features = kind.encode([example], is_training=False)
    assert features.rows.tolist() == [2]


def test_a_run_on_every_set_gives_its_official_metrics(data, model_dir, tmp_path, monkeypatch, megabert):
    monkeypatch.setattr(grid_module, "run_children", forked)
    places = ["--model", model_dir, "--data", data, "--output-dir", tmp_path / "out"]
    flags = ["--epochs", "1", "--max-seq-length", "48", "--global-batch-size", "16", "--device", "cpu"]
    assert "auprc" in megabert("finetune", "klue", "korquad", *places, *flags).out
    sets = json.loads((tmp_path / "out" / "results.json").read_text())["sets"]
    assert list(sets) == [*(task.name for task in SUITES["klue"]), "korquad"]
    for name, one in sets.items():
        (scores,) = one["settings"][0]["summary"]["mean"].values()
        assert set(find_task(name).metrics) <= scores.keys()
        assert one["test"] is None
    assert sets["klue_mrc"]["settings"][0]["summary"]["mean"]["klue-mrc-v1.1_dev"]["null_threshold"] == 0


def test_marks_after_a_piece_have_its_tag(make_kind):
    example = TaggedSentence(line=1, where="t", tokens=tuple("cafe\u0301"), tags=("B-LC", *["I-LC"] * 4))
    kind = make_kind("klue_ner", ("O", "B-LC", "I-LC"))
    features = Features(
        None, np.array([1]), rows=np.array([1]), label_positions=np.array([1]), origins=[np.array([[0, 4]])]
    )
    (row,) = kind.answers([np.array([[0.0, 9.0, 0.0]])], [example], features)
    assert row["prediction"] == list(example.tags)
