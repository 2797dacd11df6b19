"""Labelled files that are damaged, senseless or for another task."""

import json

from bad_input.given import copy, write
from bad_input.harness import Case

SOUND = "text\tlabel\n" + "The ship sailed.\tgood\nThe ship sank.\tbad\n" * 10
LONG = "word " * 80_000
FLAGS = "--model hf --output-dir new --device cpu --epochs 1 --max-seq-length 32"


def squad(**changes: object) -> str:
    """Return SQuAD's JSON with one question, some of it changed."""
    context = "The ship left the harbour at dawn."
    answer = {"text": "harbour", "answer_start": 18} | changes.pop("answer", {})
    qa = {"id": "1", "question": "What did it leave?", "answers": [answer]} | changes.pop("qa", {})
    paragraph = {"context": context, "qas": [qa] * 3} | changes.pop("paragraph", {})
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]} | changes)


def rows(*objects: object) -> str:
    """Return JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in objects)


GOOD = {"text": "The ship sailed.", "label": "good"}
BAD = {"text": "The ship sank.", "label": "bad"}

# task, file, content, what the message names, seconds it may take
FILES = (
    ("classification", "empty.tsv", "", "empty.tsv"),
    ("classification", "header.tsv", "text\tlabel\n", "header.tsv"),
    ("classification", "one.tsv", "text\tlabel\na b\tgood\n", "label"),
    ("classification", "null.tsv", SOUND + "a\x00b\t\x00\n", "null.tsv"),
    ("classification", "halves.jsonl", '{"text": "a\\ud800", "label": "good"}\n', "halves.jsonl"),
    ("classification", "nulls.jsonl", rows(GOOD, BAD, {"text": None, "label": None}), "nulls.jsonl"),
    ("classification", "deep.jsonl", "[" * 100_000 + "\n", "deep.jsonl"),
    ("regression", "digits.tsv", "text\tlabel\n" + f"a b\t{'9' * 5000}\nc d\t1\n" * 9, "digits.tsv"),
    ("tagging", "empty.jsonl", rows({"tokens": [], "tags": []}), "empty.jsonl"),
    ("ynat", "number.json", "[1, 2]", "number.json"),
    ("ynat", "open.json", '[{"title": "a", "label": "b"}', "open.json"),
    ("klue_sts", "flat.json", '[{"sentence1": "a", "sentence2": "b", "labels": 3}]', "labels.real-label"),
    ("klue_re", "entity.json", '[{"sentence": "a", "label": "no_relation"}]', "subject_entity.word"),
    ("klue_ner", "unknown.tsv", "c\tB-CAT\na\tO\n", "B-CAT"),
    ("klue_mrc", "nameless.json", '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]}', "guid"),
    ("korquad", "prose.json", "No JSON here.", "prose.json"),
    ("squad", "prose.json", "No JSON here.", "prose.json"),
    ("squad", "list.json", "[]", "list.json"),
    ("squad", "nodata.json", "{}", "nodata.json"),
    ("squad", "null.json", squad(data=None), "null.json"),
    ("squad", "negative.json", squad(answer={"answer_start": -3}), "negative.json"),
    ("squad", "id.json", squad(qa={"id": None}), "id.json"),
    ("squad", "qas.json", squad(paragraph={"qas": None}), "qas.json"),
    ("squad", "deep.json", "[" * 100_000, "deep.json"),
    ("swag", "columns.csv", "a,b\n1,2\n", "columns.csv"),
    ("sst2", "labels.tsv", "sentence\tlabel\n" + "a b\t7\n" * 9, "7"),
)
QUICK = {"nulls.jsonl", "id.json"}

LONG_ANSWER = squad(paragraph={"context": LONG + "harbour"}, answer={"answer_start": len(LONG)})
CONTEXT, BOTH, NEW = (write("long.json", LONG_ANSWER),), "--data long.json --eval-data long.json", ("new", "new/*")
LINE, WORD = ((write("long.txt", f"{word}\nshort\n"),) for word in ("word " * 800_000, "x" * 4_000_000))
PAGE = "attention --model hf --output page.html"

# what is wrong, what makes it, the command, exit codes that are right, what the message names, what it may leave
OTHERS = (
    ("finetune: a context of 400,000 characters", CONTEXT, f"finetune squad {BOTH} {FLAGS}", (0, 2, 3), (), NEW),
    ("embed: a line of four megabytes", LINE, "embed long.txt --model hf", (0, 3), (), ("long.parquet",)),
    ("embed: a word of four megabytes", WORD, "embed long.txt --model hf", (0, 3), (), ("long.parquet",)),
    ("fill-mask of nothing", (), "fill-mask --model hf ''", 2, ("TEXT", "empty"), ()),
    ("fill-mask of too much", (), f"fill-mask --model hf '{'word ' * 2000}[MASK]'", (2, 3), (), ()),
    ("similar to a piece of nothing", (), "similar --model hf ''", (2, 3), (), ()),
    ("attention of nothing", (), f"{PAGE} ''", (0, 2, 3), (), ("page.html",)),
    ("attention of too much", (), f"{PAGE} '{'word ' * 2000}'", (2, 3), (), ()),
)

CASES = [
    Case(
        name="finetune classification: numbers are texts",
        given=(copy("hf"), write("numbers.jsonl", rows(*[GOOD, BAD, {"text": 2012, "label": "good"}] * 4))),
        command=f"megabert finetune classification --data numbers.jsonl --eval-data numbers.jsonl {FLAGS}",
        code=0,
        leaves=("new", "new/*"),
    ),
    *(
        Case(
            name=f"finetune {task}: {file}",
            given=(copy("hf"), write(file, content)),
            command=f"megabert finetune {task} --data {file} --eval-data {file} {FLAGS}",
            code=(2, 3),
            says=(says,),
            quick=file in QUICK,
        )
        for task, file, content, says in FILES
    ),
    *(
        Case(
            name=f"evaluate {task}: {file}",
            given=(copy("tuned"), write(file, content)),
            command=f"megabert evaluate --model tuned/seed_42/model --data {file} --device cpu",
            code=(2, 3),
            says=(says,),
        )
        for task, file, content, says in FILES
        if task == "classification" and file != "one.tsv"
    ),
    *(
        Case(name=name, given=(copy("hf"), *given), command=f"megabert {words}", code=code, says=says, leaves=leaves)
        for name, given, words, code, says, leaves in OTHERS
    ),
]
