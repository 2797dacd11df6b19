"""A small task for the demo's model: which book, or which law, is a passage from? Pre-trained and random weights.

    python examples/demo_task.py english runs/demo/exports/last runs/demo/task

192 passages of the bundled corpus to learn from and 192 to score, the same number of each label; the two come from
different chapters or bills. Called again, it shows the same rows at once.
"""

import json
import sys
from pathlib import Path

from megabert.library import fine_tune

CORPUS = Path(__file__).parent / "corpus"
PASSAGES, EPOCHS = 48, 4  # passages of each label in train and in dev
TASKS = {  # corpus: its file, the field with the label, the label by the field's first letters, the least characters
    "english": ("public_domain.jsonl", "id", ("alice", "father-brown", "moby-dick", "persuasion"), 100),
    "korean": ("korean.jsonl", "title", ("조세", "공직선거", "근로", "형"), 50),
}


def write_task(corpus: str, folder: Path) -> None:
    """Write train.jsonl and dev.jsonl: every third chapter or bill of a label is held out."""
    file, field, labels, least = TASKS[corpus]
    documents = [json.loads(line) for line in (CORPUS / file).read_text(encoding="utf-8").splitlines()]
    rows: dict[str, list[str]] = {"train": [], "dev": []}
    for label in labels:
        texts = [document["text"].split("\n\n") for document in documents if document[field].startswith(label)]
        held_out = texts[2::3]
        del texts[2::3]
        for part, chapters in (("train", texts), ("dev", held_out)):
            passages = [passage for chapter in chapters for passage in chapter if len(passage) >= least]
            spread = (passages[i * len(passages) // PASSAGES] for i in range(PASSAGES))
            rows[part] += [json.dumps({"text": text, "label": label}, ensure_ascii=False) for text in spread]
    folder.mkdir(parents=True, exist_ok=True)
    for part, lines in rows.items():
        (folder / f"{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")


def main(corpus: str, model: str, output: str, seeds: int = 1) -> None:
    """Fine-tune from the model's weights and from random ones, and print the accuracies."""
    folder = Path(output)
    write_task(corpus, folder)
    print(f"{'weights':24}accuracy on {PASSAGES * len(TASKS[corpus][2])} passages")
    for name, random_weights in (("pre-trained", False), ("random", True)):
        settings = {"epochs": EPOCHS, "seeds": seeds, "random_weights": random_weights}
        result = fine_tune("classification", model=model, data=folder, output_dir=folder / name, **settings)
        print(f"{name:24}{result.score_shown}%", flush=True)
    print(f"{'a constant answer':24}{result.baseline_shown('dev', 'accuracy')}%")


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
