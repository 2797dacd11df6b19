"""The card of a shipped model, its curve, and a draft of its guesses, from what was recorded and measured."""

import json
from pathlib import Path
from typing import Any

import yaml

from examples.models.export import CODES, LICENSES, parameters, read_config, sources_table
from examples.models.scores import scores_dir
from examples.models.tools import Folders
from megabert.settings.config.loading import split_fork

PUBLISHED = """\
| model | parameters | trained on | GLUE, test sets | SST-2 | MNLI-m |
|---|---|---|---|---|---|
| BERT-Tiny | 4.4 million | Wikipedia and books, 3.3 billion words | 64.2 | 83.2 | 70.2 |
| BERT-Mini | 11.3 million | the same | 65.8 | 85.9 | 74.8 |

Turc et al. 2019 ([arXiv:1908.08962](https://arxiv.org/abs/1908.08962)), figures of the authors' README. This model has
not been fine-tuned on GLUE, whose sets were not at hand. It has read {pieces:.0f} million pieces of text, and they 3.3
billion words, many times: expect less of it."""

LIMITS = {
    "english": [
        "It knows the Wikipedia of 2006 and 2017 in parts, and English novels of the 19th century; nothing since.",
        "It is small and has read its texts {times:.1f} times: it knows grammar and common phrases better than facts.",
        "What it has learned helps to compare two sentences (SNLI); on single ones a bag of words is as good.",
        "Texts are lower-cased, and accents are dropped.",
        "Sequences have at most 512 tokens.",
        "It repeats the prejudices of its texts. It must not decide about people.",
    ],
    "korean": [
        "It knows bills and speeches of presidents: legal and political language. Everyday Korean is foreign to it.",
        "Speeches before the democratisation of 1987 and the wording of their time are part of the text.",
        "It is small and has read its texts {times:.1f} times.",
        "The bills of the small task, without their committees, are among the texts that it was trained on.",
        "Sequences have at most 512 tokens.",
        "It repeats the prejudices of its texts. It must not decide about people.",
    ],
}


def write_card(language: str, folders: Folders) -> None:
    """Write README.md, the curve and the log of the training beside the weights, and a draft of the guesses."""
    write_curve(folders.run, folders.model / "curve.jsonl")
    curve = over_tokens(folders)
    pieces, times = curve[-1]["pieces"] / 1e6, curve[-1]["times"]
    scores = scores_dir(folders)
    draft = draft_guesses(_read(scores / "guesses.json"))
    (scores / "guesses.md").write_text(draft)
    edited = folders.model / "guesses.md"
    sections = [
        ("Use", use(language)),
        ("Texts", sources_table(language) + f"\n\nThe weights are under {LICENSES[language]}; name the authors above."),
        ("Model", table({name: value for name, value in read_config(folders.model).items() if name in SHAPE})),
        ("Training", training(folders)),
        ("Losses over tokens", losses(curve)),
        ("Held-out text", held_out(scores)),
        ("Small tasks", small_tasks(scores / "tasks.json")),
        ("Minimal pairs", pairs(scores)),
        ("Published models of this size", PUBLISHED.format(pieces=pieces) if language == "english" else ""),
        ("Guesses", edited.read_text() if edited.exists() else draft),
        ("Limits", "\n".join(f"- {limit.format(times=times)}" for limit in LIMITS[language])),
        ("The same scores without megabert", SAME.format(language=language)),
    ]
    header = {
        "language": CODES[language],
        "license": LICENSES[language],
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["modernbert", "fill-mask", "megabert"],
    }
    count = parameters(folders.model) / 1e6
    summary = f"A ModernBERT of {count:.1f} million parameters, made by megabert on one CPU core."
    title = f"# A small {language.capitalize()} encoder\n\n{summary}"
    blocks = [f"---\n{yaml.safe_dump(header, sort_keys=False)}---", title]
    blocks += [f"## {name}\n\n" + text.strip("\n") for name, text in sections if text]
    (folders.model / "README.md").write_text("\n\n".join(blocks) + "\n")
    sentences = [_compact(row) for row in _read(scores / "sentences.json")]
    (folders.model / "sentences.jsonl").write_text("".join(f"{row}\n" for row in sentences))


SHAPE = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "local_attention", "global_attn_every_n_layers"),
)
SAME = """\
    python examples/models/same_scores.py models/{language}

needs transformers and torch alone. It computes the pseudo-log-likelihood of each sentence in `sentences.jsonl` and
compares it with megabert's; the pairs above follow from them."""


def use(language: str) -> str:
    """Return lines for Python and for a shell."""
    text = {"english": "The ship sailed over the [MASK].", "korean": "존경하는 국민 [MASK]!"}[language]
    lines = ["```python", "from transformers import pipeline", "", f'fill = pipeline("fill-mask", "models/{language}")']
    return "\n".join([*lines, f'fill("{text}")', "```", "", f"    megabert fill-mask --model {language} {text!r}"])


def training(folders: Folders) -> str:
    """Return recipe, steps, seed and commit, and the table of the stretches."""
    run = yaml.safe_load((folders.run / "config.yaml").read_text())
    rows = [json.loads(line) for line in folders.log.read_text().splitlines()]
    hours, cpu = sum(row["wall_s"] for row in rows) / 3600, [row["cpu_s"] for row in rows if row["cpu_s"] is not None]
    counted = "" if len(cpu) == len(rows) else f" in {len(cpu)} stretches (not recorded in the others)"
    facts = {
        "recipe": run["name"],
        "steps": " + ".join(f"{phase['steps']:,} at length {phase['max_seq_length']}" for phase in run["phases"]),
        "last checkpoint": f"{rows[-1]['to_step']:,}",
        "seed": run["seed"],
        "optimizer": run["optimizer"]["name"],
        "precision": run["precision"],
        "commits": ", ".join(dict.fromkeys(row["commit"] for row in rows)),
        "stretches": len(rows),
        "processor": f"{sum(cpu):,.0f} s{counted}, {hours:.1f} hours by the clock on one thread of a busy machine",
    }
    words = ("started", "from_step", "to_step", "cpu_s", "wall_s", "load", "exit")
    lines = ["| begun | from step | to step | CPU s | s | load | exit |", "|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join("" if row[word] is None else str(row[word]) for word in words) + " |" for row in rows]
    note = "Exit 75: stopped by a signal and saved; -9: killed, the next stretch begins at the last checkpoint before."
    curve = (
        "`curve.jsonl` has the loss in training and on held-out text over the steps, `stretches.jsonl` the table below."
    )
    return "\n\n".join([table(facts), curve, "\n".join(lines), note])


def over_tokens(folders: Folders) -> list[dict[str, Any]]:
    """Return the rows of the curve with their length, the pieces read until then, and how often the texts were read."""
    phases = yaml.safe_load((folders.run / "config.yaml").read_text())["phases"]
    rows = [json.loads(line) for line in (folders.model / "curve.jsonl").read_text().splitlines()]
    pieces, times, samples = 0.0, 0.0, 0
    for row in rows:
        row["length"] = phases[row["phase"] - 1]["max_seq_length"]
        totals = _read(folders.data / "instances" / str(row["length"]) / "manifest.json")["totals"]["train"]
        share = (row["progress/samples"] - samples) / totals["rows"]
        samples = row["progress/samples"]
        pieces, times = pieces + share * totals["tokens"], times + share
        row.update(pieces=pieces, times=times)
    return rows


def losses(rows: list[dict[str, Any]]) -> str:
    """Return masked-LM losses over the pieces of text that the model had read, at some ten validations."""
    shown = [*rows[:: -(-len(rows) // 10)], rows[-1]]
    lines = ["| step | length | million pieces | in training | held out |", "|---|---|---|---|---|"]
    for row in {row["step"]: row for row in shown}.values():
        figures = f"{row['pieces'] / 1e6:.1f} | {row['train/mlm_loss']:.3f} | {row['eval/mlm_loss']:.3f}"
        lines.append(f"| {row['step']:,} | {row['length']} | {figures} |")
    return "\n".join(lines)


def held_out(scores: Path) -> str:
    """Return the losses on the held-out split beside the unigram's."""
    lines = [
        "| length | predicted | loss, nats | unigram | below it | accuracy | unigram |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(scores.glob("held_out_*.json"), key=lambda path: int(path.stem.rpartition("_")[2])):
        row = _read(path)
        below = row["unigram_loss"] - row["loss"]
        accuracies = f"{row['accuracy']:.1%} | {row['unigram_accuracy']:.1%}"
        length = path.stem.rpartition("_")[2]
        losses = f"{row['loss']:.3f} | {row['unigram_loss']:.3f} | {below:.3f}"
        lines.append(f"| {length} | {row['predicted']:,} | {losses} | {accuracies} |")
    return "\n".join(lines) + "\n\n15% of the pieces are predicted; 10% of these are shown as they are."


COLUMNS = {"ours": "this model", "random": "random weights", "probe": "frozen vectors", "words": "bag of words"}


def small_tasks(path: Path) -> str:
    """Return scores after fine-tuning and the scores to beat; nothing if none were measured."""
    if not path.exists():
        return ""
    lines = [f"| set | metric | {' | '.join(COLUMNS.values())} |", "|---|---" + len(COLUMNS) * "|---" + "|"]
    for name, starts in _read(path).items():
        cells = [
            f"{100 * cell['mean']:.1f}" + (f" +- {100 * cell['spread']:.1f}" if "spread" in cell else "")
            for cell in map(starts.get, COLUMNS)
        ]
        lines.append(f"| {name} | {starts['ours']['metric']} | {' | '.join(cells)} |")
    return (
        "\n".join(lines)
        + "\n\nThe first two columns: fine-tuned with `learning_rate: auto` for each side, 2 epochs (news 4), "
        "mean and deviation of three seeds. The others: logistic regressions. "
        "benchmarks/finetuning/README.md says what the sets are."
    )


def pairs(scores: Path) -> str:
    """Return accuracies on the minimal pairs by phenomenon, beside random weights of the same shape."""
    (ours,), (random,) = (_read(scores / f"{name}.json")["sets"] for name in ("pairs", "pairs_random"))
    lines = ["| phenomenon | pairs | this model | 95% | random weights |", "|---|---|---|---|---|"]
    for row, other in zip([*ours["UID"], ours], [*random["UID"], random], strict=True):
        low, high = row["interval"]
        figures = f"{row['accuracy']:.1%} | {low:.1%} to {high:.1%} | {other['accuracy']:.1%}"
        lines.append(f"| {row['group']} | {row['pairs']} | {figures} |")
    return "\n".join(lines) + "\n\nThe better sentence of two has the higher pseudo-log-likelihood; chance is 50%."


def draft_guesses(rows: list[dict[str, Any]]) -> str:
    """Return all prompts with their best guesses, to be edited: 20 that a reader accepts, 5 that fail."""
    lines = ["| text | guesses |", "|---|---|"]
    for row in rows:
        guesses = ", ".join(f"{piece} {100 * share:.0f}%" for piece, share in row["guesses"])
        lines.append(f"| {row['text']} | {guesses.replace('|', '&#124;')} |")
    return "\n".join(lines)


def write_curve(run: Path, path: Path) -> None:
    """Write the loss in training and on held-out text at each validation. After a kill, the later record counts."""
    wanted = ("step", "phase", "progress/samples", "train/mlm_loss", "train/lr", "eval/mlm_loss", "eval/mlm_accuracy")
    rows: dict[int, dict[str, Any]] = {}
    for row in records(run):
        rows.setdefault(row["step"], {}).update({name: row[name] for name in wanted if name in row})
    kept = [_compact(rows[step]) for step in sorted(rows) if "eval/mlm_loss" in rows[step]]
    path.write_text("".join(f"{row}\n" for row in kept))


def records(run: Path) -> list[dict[str, Any]]:
    """Return what a run has logged of its steps, and before that the run of which it is a fork."""
    fork = yaml.safe_load((run / "config.yaml").read_text()).get("fork")
    before = []
    if fork:
        origin, step = split_fork(fork)
        before = [row for row in records(origin) if row["step"] <= step]
    own = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [*before, *(row for row in own if "step" in row)]


def table(rows: dict[str, Any]) -> str:
    """Return a table of two columns."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _compact(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
