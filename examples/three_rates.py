"""Three learning rates in one process: their losses as a picture, and the best model as a judge of two authors.

python examples/three_rates.py  # makes all of it in runs/three_rates; called again, it continues
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

from megabert.library import build, export, fine_tune, pretrain

CORPUS, OUT = Path(__file__).parent / "corpus" / "public_domain.jsonl", Path("runs/three_rates")
PHASE = {"max_seq_length": 32, "steps": 300, "global_batch_size": 64, "warmup_ratio": 0.1}
SETTINGS = {"optimizer.name": "adamw", "model.initializer_range": 0.05, "validation.every_steps": 50}
made, runs = build([str(CORPUS)], output_dir=OUT / "data", lengths=[32], vocab_size=1000), []
data = {"path": str(made.folder)}
for rate in (1e-3, 3e-3, 1e-2):
    phases = [PHASE | {"learning_rate": rate}]
    runs.append(pretrain("debug", run_dir=OUT / f"rate_{rate:g}", data=data, phases=phases, **SETTINGS))
    plt.plot(*runs[-1].metric("eval/mlm_loss"), marker="o", label=f"rate {rate:g}")
plt.legend(title="held-out masked-LM loss, nats")
plt.savefig(OUT / "losses.png")
best = min(runs, key=lambda run: run.metric("eval/mlm_loss")[1].min())
model = export(best.folder, output_dir=OUT / "model", checkpoint="best", languages=["en"])
parts = [part for part in map(json.loads, CORPUS.open()) if part["id"].startswith(("persuasion", "father-brown"))]
rows = [{"text": text, "label": part["source"]} for part in parts for text in part["text"].split("\n\n")]
(OUT / "authors.jsonl").write_text("\n".join(map(json.dumps, rows)))
result = fine_tune("classification", model=model, data=OUT / "authors.jsonl", output_dir=OUT / "authors", epochs=2)
print(f"{best.folder}: accuracy {result.score_shown}, constant {result.baseline_shown('held_out', 'accuracy')}")
