"""The readers of files that `damage` changes, and the hashes that are made to fit after a change."""

import hashlib
import io
import json
import shlex
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from bad_input.harness import CONTROL, MAX_MESSAGE_CHARACTERS
from bad_input.material import COMMANDS, run_flags

from data_prep.cli import main as megabert_data
from data_prep.execution.build_state import BuildState, read_state
from megabert.cli import main as megabert
from megabert.foundation import json_files


class Refused(Exception):
    """A reader said what is wrong."""


def run(main: Callable[[list[str]], int], command: str) -> None:
    """Run a command of ours in this process.

    Raises:
        Refused: It ended with an error that a user understands.
        RuntimeError: It ended in a traceback, or its messages are endless or steer a terminal.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(shlex.split(command)[1:])
    shown = out.getvalue() + err.getvalue()
    if code not in (0, 2, 3, 4, 6) or CONTROL.search(shown) or len(err.getvalue()) > MAX_MESSAGE_CHARACTERS:
        raise RuntimeError(f"exit code {code}: {shown[-1500:]!r}")
    if code:
        raise Refused(shown[-300:])


def reads(command: str) -> Callable[[Path], Any]:
    """Return a reader of what a command reads; it gives no result, so that anything is the same that is accepted."""
    main = megabert_data if command.startswith("megabert-data ") else megabert
    return lambda folder: run(main, command)


def digest_of(folder: Path, *patterns: str) -> str:
    """Return a hash of the names and bytes of files."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def build_again(folder: Path) -> Any:
    """Continue the build; it has to make the shards and manifests that it made before."""
    run(megabert_data, COMMANDS["build"])
    return digest_of(folder, "build/instances/*/*.arrow", "build/instances/*/manifest.json")


def verify(folder: Path) -> Any:
    """Check the shards, with the text."""
    from megabert.tokens.shards.folder import read_manifest

    run(megabert_data, "megabert-data verify build/instances/32 --text --workers 1")
    return read_manifest(folder / "build" / "instances" / "32").data_sha256


def show(folder: Path) -> Any:
    """Show statistics and a row, and check nothing."""
    run(megabert_data, "megabert-data stats build/instances/32")
    run(megabert_data, "megabert-data peek build/instances/32/train-00000-00.arrow:3")


def train(folder: Path) -> Any:
    """Read all rows and pack a batch, as a training does."""
    from megabert.data.mixture import Mixture
    from megabert.data.packing import RankShare, shape_for
    from megabert.data.step_packer import StepPacker, validation_batches
    from megabert.tokens.shards.checked_shards import check_shards
    from megabert.tokens.shards.shard_set import ShardSet

    digest = hashlib.sha256()
    for split in ("train", "validation"):
        shards = ShardSet.open(folder / "build" / "instances" / "32", split)
        check_shards(shards, {}, range(len(shards.shards)), with_content=True)
        columns = shards.rows(np.arange(min(shards.num_rows, 1 << 16)))
        for array in columns:
            digest.update(np.ascontiguousarray(array))
        shape = shape_for(shards.statistics, global_batch_size=16, world_size=1, micro_batch_tokens=256)
        share = RankShare(shape=shape)
        StepPacker(Mixture((shards,)), seed=1, global_batch_size=16, share=share).pack({}, 0)
        list(validation_batches(shards, share, max_instances=64))
    return digest.hexdigest()


def tokenized(folder: Path) -> Any:
    """Tokenize and count extracted text."""
    from data_prep.steps.step2_vocabulary import extracted_texts
    from data_prep.steps.step3_tokens import TokenizeTask, tokenize

    parts = []
    for path in sorted((folder / "unfinished" / "work" / "extract").glob("*.arrow"))[:3]:
        task = TokenizeTask(path, folder / "unfinished" / "tokenizer", 0.1, folder / "scratch" / path.name)
        parts += [tokenize(task)[1], len(list(extracted_texts(path, 1.0)))]
    return parts, digest_of(folder / "scratch", "*.arrow")


def words(folder: Path) -> Any:
    """Add up the counts of words, and find the documents that are held out."""
    from data_prep.steps.step2_vocabulary import held_out_of, merge_words
    from data_prep.vocabulary.training import VocabularyOptions

    paths = sorted((folder / "unfinished" / "work" / "words").glob("*.words.arrow"))
    names = [path.with_name(path.name.removesuffix(".words.arrow")) for path in paths]
    level, counted = merge_words(names, 1e9)
    held_out_of(names, level, counted, VocabularyOptions(vocab_size=400))
    return sorted(counted)


def token_ranges(part: str) -> Callable[[Path], Any]:
    """Return what reads ranges of tokenized documents, and puts them into the order of a bucket."""

    def read(folder: Path) -> Any:
        from data_prep.documents.document_set import document_schema, hash_range, tokenizer_of
        from data_prep.documents.token_files import TokenFile, TokenReader

        vocab_size = tokenizer_of(folder / "unfinished" / "tokenizer").vocab_size
        files = [TokenFile(path, 0, 9, 9) for path in sorted((folder / "unfinished" / "work" / part).glob("*.arrow"))]
        files = files if part == "chunks" else [TokenFile(file.path) for file in files]
        digest = hashlib.sha256()
        reader = TokenReader(files, vocab_size)
        for cell in range(3):
            documents = reader.read(range(2), *hash_range(cell, 3))
            ordered = documents.take(np.lexsort((documents.hashes_D, documents.splits_D)))
            ordered.write(folder / "scratch" / "bucket.arrow", document_schema(vocab_size))
            digest.update(ordered.ids_T)
        return digest.hexdigest()

    return read


def owners(folder: Path) -> Any:
    """Find who owns paragraphs, from every kind of file on the way."""
    from data_prep.clean.grouped_hashes import CHUNK_NAME, RangeTask
    from data_prep.clean.paragraph_copies import ParagraphOwners, find_copies, gather_copies, merge_hashes

    own, scratch = folder / "unfinished" / "work" / "paragraphs", folder / "scratch" / "out.npy"
    chunks = sum(path.stem.isdigit() for path in own.glob("*.npy"))
    merge_hashes(RangeTask(((CHUNK_NAME, chunks),), own, 0, 1, scratch))
    find_copies(RangeTask((("merged-{:05d}-00000.npy", 1),), own, 0, 1, scratch))
    gather_copies(RangeTask((("found-{:05d}.npy", 1),), own, 0, chunks, scratch))
    kept = ParagraphOwners(own / "copies-00000.npy", 0, 10).kept(["a paragraph of some length"] * 2)
    return kept, scratch.read_bytes()


def export(folder: Path) -> Any:
    """Read a whole checkpoint."""
    run(megabert, "megabert export run --to out")
    return digest_of(folder, "out/model.safetensors")


def report(folder: Path) -> Any:
    """Show a run by all that shows one."""
    for command in ("megabert report run", "megabert compare run run", "megabert watch run --once"):
        run(megabert, command)


def start(folder: Path) -> Any:
    """Begin a run up to its plan."""
    run(megabert, f"megabert pretrain {run_flags()} --run-dir new --dry-run")


def _state_of(folder: Path) -> BuildState:
    state = read_state(folder / "build")
    assert state is not None
    return state


def fit_manifests(folder: Path) -> None:
    """Let the manifests vouch for the shards as they are."""
    for path in folder.glob("build/instances/*/manifest.json"):
        manifest = json.loads(path.read_bytes())
        for entry in manifest["shards"]:
            entry["sha256"] = hashlib.sha256((path.parent / entry["file"]).read_bytes()).hexdigest()
        path.write_text(json.dumps(manifest))


def fit_records(folder: Path) -> None:
    """Let the records vouch for documents and shards as they are, and have instances made of the documents again."""
    build = folder / "build"
    state = _state_of(folder)
    for path in (build / "work" / "records").glob("*.jsonl"):
        lines = [json.loads(b"{" + line[json_files.START :]) for line in path.read_bytes().splitlines() if line]
        for line in lines:
            for name in line["files"]:
                content = (build / name).read_bytes()
                line["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
        path.write_bytes(b"".join(json_files.seal(line, state.context(path.stem)) + b"\n" for line in lines))
    for path in [*build.glob("work/records/instances-*"), *build.glob("instances/*/manifest.json")]:
        path.unlink()


def fit_checkpoints(folder: Path) -> None:
    """Let the manifests of checkpoints vouch for files and content as they are."""
    for path in folder.glob("run/checkpoints/*/manifest.json"):
        content = json.loads(b"{" + path.read_bytes()[json_files.START :])
        for name, stored in content["files"].items():
            data = (path.parent / name).read_bytes()
            stored |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        path.write_bytes(json_files.seal(content, "checkpoint"))
