"""Write the mean of the weights of several models.

They may be several decays of one run; they have the same sizes and one tokenizer. With --data.path, the merge and each
of its parts are scored on held-out text, the same masks for all, and the best is named. --to gets the merge, whichever
wins.

Arguments:
  RUN@STEP          run folder with a checkpoint: a step, best or last (default: last); or a Hugging Face folder
  --to FOLDER       folder to write, new or an earlier export
  --weights W       how much each model counts, in proportion (default: all alike)
  --data.path PATH  shards with a validation split to score, or a text file (default: nothing is scored)

Examples:
  megabert merge runs/one@500 runs/two@500 --to models/merged --data.path shards
  megabert merge runs/demo@2400 runs/demo@2600 --to models/merged --weights 1 3
"""

from argparse import Namespace
from pathlib import Path

from megabert.foundation.text_tables import render_table
from megabert.settings.command_line.parser import Parser, bounded, number
from megabert.settings.command_line.terminal import loading

MOST = 1e6


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("models", nargs="+", metavar="RUN@STEP")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--weights", action="extend", nargs="+", type=bounded(number, least=0, most=MOST))
    parser.add_argument("--data.path", dest="data", type=Path)
    parser.add_device()


def run(options: Namespace) -> None:
    """Merge, score, write, and name the best."""
    from megabert.downstream.export.model_folder import folder_and_checkpoint, kind_of_folder

    for name in options.models:
        kind_of_folder(folder_and_checkpoint(name)[0])
    with loading("PyTorch"):
        from megabert.downstream.export.export_folder import refuse_foreign_folder
        from megabert.downstream.inspection.masked_lm import USUAL_LENGTH, ScoringOptions, score_masked_lm
        from megabert.downstream.publish.merging import MERGE, merge_parts, open_parts, write_merge
        from megabert.foundation.files import refuse_input

    refuse_input(options.to, *(Path(folder_and_checkpoint(name)[0]) for name in options.models))
    refuse_foreign_folder(options.to)  # before the minutes of scoring
    parts = open_parts(options.models, options.weights)
    merge = merge_parts(parts)
    scores: dict[str, float] = {}
    if options.data is not None:
        scoring = ScoringOptions(max_seq_length=min(USUAL_LENGTH, merge.longest))
        rows = []
        for name, source in [(part.name, part.source) for part in parts] + [(MERGE, merge)]:
            total = score_masked_lm(source, options.data, scoring, device=options.device).total
            scores[name] = total.loss
            rows.append((name, f"{total.loss:.4f}", f"{total.accuracy:.2%}"))
        print(render_table(rows, headers=("model", "masked-LM loss", "accuracy"), align="lrr"))
        best = min(scores, key=lambda name: scores[name])
        part = min(scores[part.name] for part in parts)
        print(f"best on {options.data}: {best}; the merge is {scores[MERGE] - part:+.4f} from its best part")
    write_merge(options.to, merge, parts, scores)
    print(f"merged {len(parts)} models to {options.to}")
