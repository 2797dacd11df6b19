"""Mistakes in asking for the further forms of an export."""

import re

from bad_input.given import copy, link, make, remove, set_json, write
from bad_input.harness import Case


def of_class(name):
    """Name a class in config.json."""
    return (set_json("hf/config.json", "architectures", [name]),)


MODULES_LINK = (make(lambda folder: (folder / "out").mkdir()), link("out/2_Normalize", "../hf"))
VECTORS = "--to out --sentence-transformers mean"

# name, what is done to the material, command, exit code, what the message names
ROWS = (
    ("an average that the run does not keep", (), "run --to out --weights average", 4, "holds no average"),
    ("into a working folder with files", (), "run --to .", 2, "holds run"),
    ("no new form of a folder", (), "hf --to out", 4, "config.yaml"),
    ("a folder that is not there", (), f"nowhere {VECTORS}", 2, "nowhere"),
    ("a checkpoint of a folder", (), f"hf {VECTORS} --checkpoint 4", 2, "--checkpoint"),
    ("a folder without weights", (remove("hf/model.safetensors"),), f"hf {VECTORS}", 4, "model.safetensors"),
    ("a folder of no class", (set_json("hf/config.json", "architectures", None),), f"hf {VECTORS}", 2, "architectures"),
    ("a class whose head is missing, compared", of_class("BertForMultipleChoice"), "hf --to out --check", 4, "classif"),
    ("a file in the place of onnx", (write("out/onnx", "mine"),), "hf --to out --onnx", 2, "onnx"),
    ("a file among ONNX", (write("out/onnx/mine.onnx", "mine"),), "hf --to out --onnx", 2, "onnx/mine.onnx"),
    ("ONNX with a word", (), "hf --to out --onnx int8", 2, "int8"),
    ("a folder in which others are", (write("out/1_Pooling/mine.json", "{}"),), f"hf {VECTORS}", 2, "mine.json"),
    ("a file in the place of modules", (write("out/1_Pooling", "mine"),), f"hf {VECTORS}", 2, "1_Pooling"),
    ("a link in the place of modules", MODULES_LINK, f"hf {VECTORS}", 2, "2_Normalize"),
)
QUICK = {"into a working folder with files", "a file in the place of modules", "a step that is not there", "by nobody"}
# name, what is done to the material, words after the verb, exit code, what the message names
MERGES = (
    ("one model", (), "run@6 --to out", 2, "one model is no merge"),
    ("a step that is not there", (), "run@6 run@5 --to out", 4, "5"),
    ("a step that is no number", (), "run@6 run@soon --to out", (2, 4), "soon"),
    ("a folder that is not there", (), "run@6 nowhere@6 --to out", 2, "nowhere"),
    ("a step of a folder", (), "run@6 hf@6 --to out", 2, "no checkpoint 6"),
    ("weights of another number", (), "run@4 run@6 --to out --weights 1 2 3", 2, "3 for 2 models"),
    ("negative weights", (), "run@4 run@6 --to out --weights 1 -2", 2, "--weights"),
    ("weights of nothing", (), "run@4 run@6 --to out --weights 0 0", 2, "all are 0"),
    ("weights that are no numbers", (), "run@4 run@6 --to out --weights nan 1", 2, "nan"),
    ("data that are not there", (), "run@4 run@6 --to out --data.path nowhere.txt", 3, "nowhere.txt"),
    ("the folder of a run", (), "run@4 run@6 --to run", 2, "run"),
)
NO_HUB = {"HF_TOKEN": "hf_none", "HF_ENDPOINT": "http://127.0.0.1:1"}
PAIRS = '{"model": "hf", "mask": "token", "sets": [{"name": "english", "pairs": 2, "accuracy": %s}]}'
NUL = (PAIRS % 0.5).replace("hf", "h\\u0000f")
PUSH = "run --to out --push owner/bert"
# name, variables, what is done to the material, words after the verb, exit code, what the message names
PUSHES = (
    ("by nobody", {}, (), PUSH, 2, "hf auth login"),
    ("of a folder that is not there", NO_HUB, (), "nowhere --to out --push owner/bert", 2, "nowhere"),
    ("private, but no push", {}, (), "run --to out --private", 2, "--private"),
    ("scores of a path with NUL", {}, (write("x.json", NUL),), "run --to out --scores x.json", 3, "is no path"),
    ("scores of a folder", NO_HUB, (), "hf --to out --push owner/bert --scores x.json", 2, "--scores"),
)
CASES = [
    Case(
        name=f"push: {name}",
        given=(copy("hf" if words.startswith("hf") else "run"), *steps),
        command=f"megabert export {words}",
        environment=environment,
        code=code,
        says=(says,),
        quick=name in QUICK,
    )
    for name, environment, steps, words, code, says in PUSHES
]
CASES += [
    Case(
        name=f"export: {name}",
        given=(copy(re.match("run|tuned|hf|", words)[0] or "hf"), *steps),
        command=f"megabert export {words}",
        code=code,
        says=(says,),
        leaves=("out", "out/*") if "--check" in words else (),  # the export is whole, its comparison is not
        quick=name in QUICK,
    )
    for name, steps, words, code, says in ROWS
]
CASES += [
    Case(
        name=f"merge: {name}",
        given=(copy("run", "hf"), *steps),
        command=f"megabert merge {words}",
        code=code,
        says=(says,),
        quick=name in QUICK,
    )
    for name, steps, words, code, says in MERGES
]
CASES += [
    Case(
        name=f"{words.split()[0]}: into the working folder, which is empty",
        given=(copy("run"), make(lambda folder: (folder / "run").rename(folder.parent / "away"))),
        command=f"megabert {words} --to .",
        code=0,
        says=("to .",),
        leaves=("*",),
        quick=True,
    )
    for words in ("export ../away", "merge ../away@4 ../away@6")
]
