"""Fine-tunings and grids that cannot be continued, reported or compared."""

from bad_input.given import copy, write
from bad_input.harness import Case

GRID = "megabert finetune classification=labels.tsv --model hf --data . --output-dir new --device cpu --epochs 1 2"
REPORT = "megabert report grid"
TRAINING, UNFINISHED = copy("hf", "labels.tsv"), write("grid/grid.json", "{}")
# name, what is done to the material, command, exit code, what the message names
ROWS = (
    ("a record that is cut", (TRAINING, write("new/grid.json", '{"settings": {')), GRID, 4, "grid.json"),
    ("a fine-tuning in its place", (TRAINING, copy("tuned")), GRID.replace("new", "tuned"), 4, "tuned"),
    ("a report before its end", (UNFINISHED,), REPORT, 4, "results.json"),
    ("a margin of a fine-tuning", (copy("tuned"),), "megabert report tuned --min-margin 1", 2, "--min-margin"),
    ("a comparison before its end", (copy("tuned"), UNFINISHED), "megabert compare tuned grid", 4, "results.json"),
    ("a comparison with a pre-training", (copy("tuned", "run"),), "megabert compare tuned run", 4, "tuned"),
    ("a picture of two fine-tunings", (copy("tuned"),), "megabert compare tuned tuned --png new.png", 2, "--png"),
)
CASES = [
    Case(
        name=f"grid: {name}", given=given, command=command, code=code, says=(says,), leaves=("new/.lock", "tuned/.lock")
    )
    for name, given, command, code, says in ROWS
]
