"""A build from Python."""

import io
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

from megabert.foundation.errors import ConfigError
from megabert.foundation.remote_files import is_url
from megabert.settings.command_line.arguments import checks_arguments
from megabert.settings.command_line.flags import nest


class Build(NamedTuple):
    """A finished build of shards."""

    folder: Path
    """The folder for ``data={"path": folder}`` of a pre-training."""
    instances: dict[int, dict[str, int]]
    """Number of instances by length and split."""
    warnings: tuple[str, ...]
    """Warnings that the command would have printed."""


@checks_arguments
def build(
    inputs: Sequence[str],
    *,
    output_dir: str | Path,
    recipe: str | Path | None = None,
    workers: int | None = None,
    progress: bool = False,
    **settings: Any,
) -> Build:
    """Make shards of pre-training instances from text: `megabert-data build`.

    The same call on the same folder continues it, and returns a finished build at once. More than one worker is a
    process that imports the calling script, which then needs ``if __name__ == "__main__":``.

    Args:
        inputs: Files or globs; each is a source.
        output_dir: A new folder, or the folder of the same build.
        recipe: Recipe of the pre-training that is to read the shards.
        workers: Processes; by default one per core, and one for less than 8 MB.
        progress: Whether to print the messages of the command.
        settings: Fields of `megabert-data build --print-config`: a section as a mapping, or a field by its dotted path.

    Raises:
        ConfigError: A setting is wrong; the message names it and the nearest known one.
        DataError: An input or a tokenizer cannot be used, or there is too little text.

    Example:
        >>> shards = build(["texts/*.jsonl"], output_dir="data", recipe="debug", vocab_size=1000)
        >>> sorted(shards.instances)  # lengths
        [128, 512]
    """
    from data_prep.commands.build import warnings_of
    from data_prep.commands.options import MAX_WORKERS, resolve_build
    from data_prep.execution.build_state import read_state
    from data_prep.execution.executors import local_executor
    from data_prep.pipeline import build_shards

    if is_url(str(output_dir)):
        raise ConfigError(f"output_dir={output_dir}: only `megabert-data build --output URL` uploads. Name a folder.")
    if workers is not None and workers > MAX_WORKERS:
        raise ConfigError(f"workers={workers}: at most {MAX_WORKERS}.")
    read_state(Path(output_dir))  # names a package that is gone before settings that need it are resolved
    sources, name = [{"input": one} for one in inputs], None if recipe is None else str(recipe)
    config = resolve_build(sources, name, nest(settings))
    with nullcontext() if progress else redirect_stderr(io.StringIO()):
        built = build_shards(config, Path(output_dir), local_executor(workers))
    instances = {
        length: {split: total["rows"] for split, total in manifest.totals().items()}
        for length, manifest in built.manifests.items()
    }
    return Build(built.folder, instances, tuple(warnings_of(built)))
