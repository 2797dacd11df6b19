"""Three learning rates in one process: shards, three runs and their picture, the best one as a judge of two authors.

python examples/three_rates.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

from megabert.library import build, export, fine_tune, pretrain

CORPUS, OUT = Path(__file__).parent / "corpus" / "public_domain.jsonl", Path("runs/three_rates")
LENGTH = {"phases.0.steps": 500, "phases.1.steps": 20, "validation.every_steps": 100}


def main() -> None:
    """Make all of it in `OUT`; called again, it continues."""
    made, runs = build([str(CORPUS)], output_dir=OUT / "data", recipe="debug", vocab_size=4096), []
    for rate in (5e-3, 1e-2, 2e-2):
        settings = {"data.path": str(made.folder), "phases.0.learning_rate": rate, **LENGTH}
        runs.append(pretrain("debug", run_dir=OUT / f"rate_{rate:g}", device="cpu", **settings))
        plt.plot(*runs[-1].metric("eval/mlm_loss"), marker="o", label=f"rate {rate:g}")
    plt.legend(title="held-out masked-LM loss, nats")
    plt.savefig(OUT / "losses.png")
    best = min(runs, key=lambda run: run.metric("eval/mlm_loss")[1].min())
    model = export(best.folder, output_dir=OUT / "model", checkpoint="best", languages=["en"])
    rows: dict[str, list[str]] = {"train": [], "dev": []}
    for part in map(json.loads, CORPUS.read_text(encoding="utf-8").splitlines()):
        book, _, chapter = part["id"].rpartition("-")
        if book in ("moby-dick", "persuasion") and chapter.isdecimal() and int(chapter) <= 24:
            texts = part["text"].split("\n\n")[:8]  # each third chapter is held out
            rows["train" if int(chapter) % 3 else "dev"] += [json.dumps({"text": t, "label": book}) for t in texts]
    for name, lines in rows.items():
        (OUT / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    result = fine_tune("classification", model=model, data=OUT, output_dir=OUT / "authors", device="cpu", epochs=8)
    print(f"{best.folder}: accuracy {result.score_shown}, constant {result.baseline_shown('dev', 'accuracy')}")


if __name__ == "__main__":
    main()
