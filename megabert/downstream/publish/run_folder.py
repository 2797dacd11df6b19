"""From a run's checkpoint, or from a Hugging Face folder, to a Hugging Face folder with its model card."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from megabert.checkpoints.format import CheckpointManifest, RunSummary, read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.downstream.export.config_json import GENERATOR_FOLDER, read_object, stated_length
from megabert.downstream.export.export_folder import EVAL_RESULTS, open_export
from megabert.downstream.export.huggingface import TaskHead, read_huggingface, state_settings, write_model_files
from megabert.downstream.export.model_card import ModelCard, check_facts, facts_of, pipeline_of, render_eval_results
from megabert.downstream.export.model_folder import SHIPPED_NAMES, config_path
from megabert.downstream.export.sources import longest_trained
from megabert.downstream.publish.forms import Forms, add_forms, refuse_lost_forms
from megabert.foundation.errors import ConfigError, MegabertError
from megabert.foundation.files import atomic_write, read_small
from megabert.settings.config.loading import phase_name, to_dict
from megabert.settings.config.needs import RUN_NEEDS, has_effect
from megabert.settings.config.run import RunConfig, Weights
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tokens.tokenization import Tokenizer, load_tokenizer
from megabert.tokens.tokenization.huggingface import is_hub_name
from megabert.training.run.folder import checkpoints_dir, read_config, run_sources, tokenizer_dir

KEPT_FILES = ("README.md", f"{GENERATOR_FOLDER}/README.md", EVAL_RESULTS)
"""Files that are copied when a folder is exported again: weights tell neither of them."""
_HEAD = "id2label label2id num_labels _num_labels problem_type megabert_task"
KEPT_FIELDS = (*_HEAD.split(), "sentence_transformers", "sbert_ce_default_activation_function", "tokenizer_class")
"""Fields of config.json that describe a fine-tuned model's head, or choose the tokenizer's class."""


def export_run(
    run_dir: Path,
    folder: Path,
    *,
    checkpoint: str = "last",
    weights: Weights | None = None,
    facts: Mapping[str, Any] | None = None,
    forms: Forms | None = None,
) -> int:
    """Write a run's checkpoint in Hugging Face form.

    Args:
        run_dir: The run folder.
        folder: Where to write: a new or empty folder, or an earlier export.
        checkpoint: ``last``, ``best`` (the lowest held-out loss of the last phase) or a step.
        weights: Whether to write the weights as they were trained, or their moving average. None writes them as they
            were trained, but for ``best`` as the validation scored them.
        facts: Fields of the card that no run records, such as ``languages``, ``license`` and ``scores``. By default,
            ``base_model`` is ``init_from``.
        forms: Further forms of the model, such as modules for sentence-transformers.

    Returns:
        The step of the checkpoint.

    Raises:
        CheckpointError, ConfigError, DataError: There is no such run or checkpoint, or the folder holds something else.
    """
    config, forms, facts = read_config(run_dir), forms or Forms(), facts or {}
    check_facts(facts.get("languages", ()), facts.get("license"), facts.get("base_model"))
    path = find_checkpoint(checkpoints_dir(run_dir), checkpoint, falls_back=False)
    manifest, average = read_checkpoint_manifest(path), (weights or config.weights_of(checkpoint)) == "average"
    model = config.model_in_phase(manifest.run.phase)
    state = read_masters(path, average=average)  # refuses an average that the run does not keep
    card = replace(_card(run_dir, config, manifest, checkpoint, average=average), **facts)
    with open_export(folder) as new:
        pieces, card = tokenizer_dir(run_dir), forms.on_card(card)
        write_model_files(new, state=state, config=model, tokenizer_dir=pieces, card=card)
        longest = card.longest or model.max_position_embeddings
        state_settings(new, model_max_length=longest)  # all positions if the card states none
        add_forms(new, model, forms, longest=longest, source=None)
        results = render_eval_results(card.scores)
        if results:
            (new / EVAL_RESULTS).parent.mkdir()
            atomic_write(new / EVAL_RESULTS, results)
    return manifest.run.step


def export_again(source: Path, folder: Path, forms: Forms) -> None:
    """Write a Hugging Face folder once more, with further forms. Task heads, cards and scores stay as they are.

    Args:
        source: The folder, of any family that is known here; a fine-tuned model's is one as well.
        folder: Where to write: a new or empty folder, or an earlier export, which may be ``source``.
        forms: Further forms of the model, such as modules for sentence-transformers.

    Raises:
        CheckpointError, ConfigError, DataError: ``source`` is not such a folder, or has a form that ``forms`` lacks, or
            ``folder`` holds something else.
    """
    refuse_lost_forms(source, forms)
    content, stated = read_huggingface(source), read_object(config_path(source))
    architecture = next(iter(stated.get("architectures") or ()), None)
    if architecture is None:
        raise ConfigError(f"{source}/config.json: states no architectures. Name the class that the weights are of.")
    fields = {name: stated[name] for name in KEPT_FIELDS if name in stated}
    card = ModelCard(name=source.resolve().name, pipeline=pipeline_of(architecture), **facts_of(source))
    with open_export(folder) as new:
        write_model_files(
            new,
            state=content.state,
            config=content.config,
            tokenizer_dir=source,
            card=forms.on_card(card),
            task=TaskHead(architecture, fields, content.unused),
        )
        for name in KEPT_FILES:
            if (source / name).is_file():
                (new / name).parent.mkdir(exist_ok=True)
                atomic_write(new / name, read_small(source / name))
        positions = content.config.max_position_embeddings
        longest = stated_length(source, positions) or positions
        add_forms(new, content.config, forms, longest=longest, source=source)


def _card(
    run_dir: Path, config: RunConfig, manifest: CheckpointManifest, checkpoint: str, *, average: bool
) -> ModelCard:
    run = manifest.run
    phases = {
        phase_name(config, index): f"{phase.num_steps:,} steps of {phase.global_batch_size:,} instances of up to "
        f"{phase.max_seq_length} tokens, learning rate {phase.learning_rate:g}, warm-up {phase.warmup_ratio:.2%}, "
        f"decay {phase.decay}" + (phase.describe_masks() and f", {phase.describe_masks()}")
        for index, phase in enumerate(config.phases)
    }
    # A path of this machine is nobody else's business: of a folder the card has the name.
    base = config.init_from
    if base and base not in SHIPPED_NAMES and not is_hub_name(base):
        base = Path(base).resolve().name
    values = to_dict(config)
    is_scored = config.validation.weights == "average"
    return ModelCard(
        name=config.name,
        description=f"An encoder of the family {config.model.traits.title}, pre-trained with megabert.",
        data=_data(run_dir, config, run),
        longest=longest_trained(config, run.phase),
        recipe={
            "recipe": config.name,
            "optimizer": ", ".join(
                f"{key} {value}"
                for key, value in values["optimizer"].items()
                if has_effect(f"optimizer.{key}", values, RUN_NEEDS)
            ),
            **phases,
            "precision": config.precision,
            "seed": config.seed,
            **({"started from": base} if base else {}),
        },
        checkpoint={
            "chosen as": checkpoint,
            **({"weights": f"moving average, decay {config.average.decay:g}"} if average else {}),
            "step": f"{run.step:,} (phase {run.phase + 1}, step {run.phase_step:,} of it)",
            "instances seen": f"{run.samples:,}",
        },
        base_model=base,
        # The latest validation may have been at an earlier step, or of the other weights: no metrics of these then.
        metrics=run.metrics if run.metrics_step == run.step and average == is_scored else {},
        software=manifest.versions,
        symbols=_example_of_symbols(load_tokenizer(tokenizer_dir(run_dir))),
    )


def _example_of_symbols(tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return how the symbols of a model are written, and an example; None if it reads text."""
    if not tokenizer.is_symbol_table:
        return None
    usual = [piece for piece in tokenizer.pieces if piece not in tokenizer.names][:3]
    written = "No table of symbols was given: they are the numbers of the ids. " if tokenizer.reads_numbers else ""
    return f"{written}A text is symbols, separated by white space.", " ".join([*usual, tokenizer.names.mask])


def _data(run_dir: Path, config: RunConfig, run: RunSummary) -> dict[str, Any]:
    """Describe the shards; of shards that are gone or replaced, only the hashes in the checkpoint are known."""
    rows: dict[str, Any] = {}
    for index, phase in enumerate(config.phases):
        name = phase_name(config, index)
        rows[f"{name}: shards SHA-256"] = ", ".join(run.data_sha256[index])
        try:
            sources = [ShardSet.open(folder) for folder in run_sources(run_dir, config, phase)]
        except MegabertError:
            continue
        if [source.manifest.data_sha256 for source in sources] != run.data_sha256[index]:
            continue
        train, total = sources[0], sum(source.num_rows for source in sources)
        rows[f"{name}: instances"] = f"{total:,} of up to {train.metadata.max_seq_length} tokens"
        rows[f"{name}: objective"] = train.metadata.objective
        rows["tokenizer SHA-256"] = train.metadata.tokenizer_sha256
    return rows
