"""Model folders and checkpoints that are damaged, senseless or of another model, under each command that reads one."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from bad_input.given import change, copy, make, remove, set_json, write
from bad_input.harness import Case, Step
from bad_input.material import RUN_FLAGS, run_flags
from safetensors.torch import load_file, save_file

SIZES = [name for name in RUN_FLAGS if name.startswith("model.") and "dropout" not in name]
COMMANDS = {
    "fill-mask": "megabert fill-mask --model hf 'the [MASK] ship'",
    "embed": "megabert embed lines.txt --model hf",
    "similar": "megabert similar --model hf ship",
    "export again": "megabert export hf --to out --sentence-transformers mean",
    "attention": "megabert attention --model hf --output page.html 'the ship'",
    "finetune": "megabert finetune classification --model hf --data labels.tsv --output-dir new --epochs 1",
    "pretrain": f"megabert pretrain {run_flags(**dict.fromkeys(SIZES))} --run-dir new --init-from hf",
}
NEEDS = ("hf", "labels.tsv", "lines.txt", "build")


def tensors(how: Callable[[dict[str, torch.Tensor]], None]) -> Step:
    """Change the tensors of the exported model."""

    def step(folder: Path) -> None:
        path = folder / "hf" / "model.safetensors"
        content = load_file(path)
        how(content)
        save_file({name: tensor.contiguous() for name, tensor in content.items()}, path, {"format": "pt"})

    return make(step)


def fill(value: float) -> Step:
    """Set every weight."""

    def how(content: dict[str, torch.Tensor]) -> None:
        for tensor in content.values():
            tensor.fill_(value)

    return tensors(how)


def one_nan(content: dict[str, torch.Tensor]) -> None:
    next(tensor for name, tensor in content.items() if name.endswith("query.weight"))[0, 0] = float("nan")


def add_layer(content: dict[str, torch.Tensor]) -> None:
    for name in [name for name in content if "layer.1." in name]:
        content[name.replace("layer.1.", "layer.2.")] = content[name].clone()


def untie(content: dict[str, torch.Tensor]) -> None:
    content["cls.predictions.decoder.weight"] = content["bert.embeddings.word_embeddings.weight"] + 1


def rename_pieces(content: bytes) -> bytes:
    """Write every piece but the special ones with a character that no text of ours has."""
    lines = content.decode().splitlines()
    renamed = [line if line.startswith("[") else f"\u6f22{line}" for line in lines]
    return "".join(f"{line}\n" for line in renamed).encode()


def header(text: bytes) -> Callable[[bytes], bytes]:
    """Return what replaces the header of a safetensors file."""
    return lambda content: struct.pack("<Q", len(text)) + text + content[8 + struct.unpack("<Q", content[:8])[0] :]


WEIGHTS = "hf/model.safetensors"
OUTSIDE = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]}}).encode()


def weights(how: Callable[[bytes], bytes]) -> tuple[tuple[Step, ...], str]:
    """Change the bytes of the weights, which the message names."""
    return (change(WEIGHTS, how),), "model.safetensors"


def states(key: str, value: object) -> tuple[tuple[Step, ...], str]:
    """State in config.json what the message names."""
    return (set_json("hf/config.json", key, value),), key


DAMAGES: dict[str, tuple[tuple[Step, ...], str]] = {
    "without weights": ((remove(WEIGHTS),), "model.safetensors"),
    "empty weights": weights(lambda content: b""),
    "cut weights": weights(lambda content: content[: len(content) // 2]),
    "a header of prose": weights(header(b"no JSON at all")),
    "a header without end": weights(lambda content: struct.pack("<Q", 1 << 62) + content[8:]),
    "offsets outside": weights(header(OUTSIDE)),
    "one NaN": ((tensors(one_nan),), "NaN"),
    "a layer too many": ((tensors(add_layer),), "layer.2"),
    "zeros everywhere": ((fill(0.0),), "zero"),
    "a large number": ((fill(1e30),), "NaN"),
    "weights of nothing": ((tensors(lambda content: content.clear()),), ""),
    "without config.json": ((remove("hf/config.json"),), "config.json"),
    "a billion layers": states("num_hidden_layers", 10**9),
    "negative sizes": states("hidden_size", -32),
    "no heads": states("num_attention_heads", 0),
    "NaN for a probability": states("hidden_dropout_prob", float("nan")),
    "another vocabulary": ((write("hf/vocab.txt", "[PAD]\n[UNK]\n"), remove("hf/tokenizer.json")), "vocab"),
    "a vocabulary not in UTF-8": ((write("hf/vocab.txt", b"\xff\xfe\n"), remove("hf/tokenizer.json")), "vocab.txt"),
    "no tokenizer": (tuple(remove(f"hf/{name}") for name in ("vocab.txt", "tokenizer.json")), "tokenizer"),
}
QUICK = {"a layer too many", "a billion layers"}
UNSEEN = {(verb, "a large number") for verb in ("similar", "pretrain", "finetune", "export again")}
"""What a command has no need to notice, or notices in its course."""

STEP_6 = "run/checkpoints/step_00000006"
READERS_OF_RUNS = {
    "export": "megabert export run --to out",
    "fill-mask of a run": "megabert fill-mask --model run 'the [MASK] ship'",
}


def cut_rank_files(folder: Path) -> None:
    """Halve the files of rank 0."""
    for path in folder.glob("run/checkpoints/*/rank_00000.safetensors"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


CASES = [
    *(
        Case(
            name=f"{verb}: {name}",
            given=(copy(*NEEDS), *steps),
            command=command,
            code=(2, 3, 4),
            says=(says,) if says else (),
            leaves=("new", "new/*") if verb == "pretrain" else (),  # weights are read when the run has begun
            quick=name in QUICK and verb == "fill-mask",
        )
        for verb, command in COMMANDS.items()
        for name, (steps, says) in DAMAGES.items()
        if (verb, name) not in UNSEEN
    ),
    *(
        Case(
            name=f"{verb}: cut rank files",
            given=(copy("run", "build"), make(cut_rank_files)),
            command=command,
            code=4,
            says=("rank_00000.safetensors",),
            leaves=("run/status.json",),
            quick=verb == "export",
        )
        for verb, command in {**READERS_OF_RUNS, "resume": f"megabert pretrain {run_flags()} --run-dir run"}.items()
    ),
    *(
        Case(
            name=f"{verb}: latest names nothing",
            given=(copy("run", "build"), write("run/checkpoints/latest", "step_99999999\n")),
            command=command,
            code=0,
            says=("step_99999999", f"the newest checkpoint is {STEP_6}"),
            leaves=("out", "out/*", "run/*"),
        )
        for verb, command in READERS_OF_RUNS.items()
    ),
    *(
        Case(
            name=f"{verb}: the last checkpoint's {file} is damaged",
            given=(copy("run", "lines.txt"), change(f"{STEP_6}/{file}", lambda content: content[:-9])),
            command=command,
            code=4,
            says=(file, "--checkpoint 4"),
            quick=verb == "export" and file == "manifest.json",
        )
        for verb, command in {**READERS_OF_RUNS, "embed with a run": "megabert embed lines.txt --model run"}.items()
        for file in ("manifest.json", "rank_00000.safetensors")
    ),
    Case(
        name="pretrain: a vocabulary that shares no piece",
        given=(copy(*NEEDS), remove("hf/tokenizer.json"), change("hf/vocab.txt", rename_pieces)),
        command=f"{COMMANDS['pretrain']} --init-vocabulary transfer",
        code=2,
        says=("nothing would be kept", "hf/vocab.txt"),
    ),
    *(
        Case(
            name=f"{verb}: a decoder of its own",
            given=(copy(*NEEDS), tensors(untie)),
            command=COMMANDS[verb],
            code=4,
            says=("tie_word_embeddings",),
            leaves=("new", "new/*"),
        )
        for verb in ("fill-mask", "pretrain")
    ),
]
