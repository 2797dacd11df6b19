"""Print the contents of a build and the text that was dropped.

With --dry-run and --input instead of a folder, it shows the losses of a sample of the text to each cleaning rule.

Arguments:
  DIR             a build, or one folder of its shards; none with --dry-run
  --plots FOLDER  also write PNG pictures there
  --dry-run       try each cleaning rule on a sample of --input, and write nothing but --plots

Examples:
  megabert-data stats data/mine --plots data/mine/plots
  megabert-data stats --dry-run --input 'web/*.jsonl' --plots plots
"""

import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from data_prep.checks.stats import reporting_damage, share, show_stats, write_plots, write_rule_plot
from data_prep.commands.options import add_source_arguments, make_config
from data_prep.commands.vocab import LATER
from data_prep.config.build import BuildConfig
from data_prep.extract.inputs import find_files
from data_prep.planning.text_sample import RuleTrial, try_rules
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.text_tables import render_table
from megabert.settings.command_line.parser import Parser
from megabert.tokens.shards.folder import MANIFEST_NAME, read_manifest

INPUT_FLAGS = ("--input", "--config", "--for", "--clean")
"""Flags that say which text is meant, and need ``--dry-run``."""
UNUSED = (*LATER, "pieces", "vocab_size", "spare_pieces", "uncased", "max_bad_share", "exclude")
"""Fields of a build that change nothing of the rules."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    add_source_arguments(parser)
    first = ("plots", "dry-run", "input", "config", "clean")
    parser.add_fields(BuildConfig, first=first, sections=("sources.N", "clean"), without=UNUSED)
    for flag in (*INPUT_FLAGS, *(f"--{path.replace('_', '-')}" for path in parser.fields)):
        parser.add_rule(flag, needs=["--dry-run"])


def run(options: Namespace) -> None:
    """Print the report."""
    if options.dry_run:
        _try_rules(options)
        return
    if options.folder is None:
        raise ConfigError("stats: name a build (DIR), or give --dry-run with --input.")
    folders = shard_folders(options.folder)
    manifests = [read_manifest(folder) for folder in folders]
    remedy = "Delete the manifests and run the same build again, which writes them again."
    with reporting_damage(options.folder, remedy):
        print("\n".join(show_stats(folders, manifests)))
        if options.plots is not None:
            for path in write_plots(options.plots, [folder.name for folder in folders], manifests):
                print(f"picture {path}")


def _try_rules(options: Namespace) -> None:
    if options.folder is not None:
        raise ConfigError(f"{options.folder}: --dry-run looks at text and not at a build. Leave one of the two out.")
    config = make_config(options)
    trial = try_rules(config, find_files(config.sources))
    if not trial.documents:
        raise DataError("No document was found in the input. Give --input files that hold text.")
    print("\n".join(_trial_lines(trial, config.clean.rules)))
    if options.plots is not None:
        shares = {
            rule: (100 * effect.documents / trial.documents, 100 * effect.characters / max(1, trial.characters))
            for rule, effect in trial.effects.items()
        }
        print(f"picture {write_rule_plot(options.plots, shares)}")


def _trial_lines(trial: RuleTrial, chosen: tuple[str, ...]) -> Iterator[str]:
    yield f"of a sample of {trial.documents:,} documents ({trial.characters:,} characters), each rule alone would drop:"
    rows = [
        (
            *(rule, f"{effect.documents:,}", share(effect.documents, trial.documents)),
            *(share(effect.characters, trial.characters), f"{effect.matches:,}" if effect.matches else ""),
        )
        for rule, effect in trial.effects.items()
    ]
    headers = ("rule", "documents", "of all", "characters", "masked places")
    yield render_table(rows, headers=headers, align="lrrrr")
    kept = share(trial.kept, trial.documents)
    yield f"{', '.join(chosen) or 'no rule'} together: {trial.kept:,} documents ({kept}) stay"
    examples = [f"  {rule}: {effect.example}" for rule, effect in trial.effects.items() if effect.example]
    yield from ["examples:", *examples] if examples else []


def shard_folders(folder: Path) -> list[Path]:
    """Return the folders of shards of a build, shortest length first, or the folder itself if it is one.

    Raises:
        DataError: The folder is neither.
    """
    if (folder / MANIFEST_NAME).exists():
        return [folder]
    lengths = (path for path in folder.glob("instances/*") if re.fullmatch("[0-9]{1,18}", path.name))
    folders = sorted((path for path in lengths if path.is_dir()), key=lambda path: int(path.name))
    if not folders:
        raise DataError(
            f"{folder}: neither a build nor a folder of shards. Name the --output of `megabert-data build`."
        )
    return folders
