"""Files that are no recipe."""

from bad_input.given import copy, write
from bad_input.harness import Case

# contents of a recipe, what the message names
RECIPES = (
    ("empty", "", "mapping"),
    ("prose", "There is no recipe here.", "mapping"),
    ("list", "- 1\n- 2\n", "mapping"),
    ("tabs", "model:\n\tpreset: tiny\n", "recipe.yaml"),
    ("unknown key", "modle:\n  preset: tiny\n", "model"),
    ("twice the same key", "seed: 1\nseed: 2\nphases: []\n", "seed"),
    ("date for a number", "seed: 2001-01-01\n", "seed"),
    ("base sixty", "seed: 1:30\n", "seed"),
    ("digits without end", "seed: " + "9" * 5000 + "\n", "recipe.yaml"),
    ("superscript", "seed: \u00b2\n", "seed"),
    ("not UTF-8", b"name: \xff\xfe\n", "recipe.yaml"),
    ("null byte", b"name: a\x00b\n", "recipe.yaml"),
    ("phases as a word", "phases: two\n", "phases"),
    ("phases of nothing", "phases: []\n", "phases"),
    ("a tag of Python", "name: !!python/object/apply:os.system ['true']\n", "recipe.yaml"),
    ("an anchor without end", "seed: &a [*a]\n", "recipe.yaml"),
    ("deep", "seed: " + "[" * 3000 + "]" * 3000 + "\n", "recipe.yaml"),
    (
        "a billion laughs",
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)),
        "recipe.yaml",
    ),
    ("a control character", "name: 'a\\eb'\nmodle: 1\n", "recipe.yaml"),
)

CASES = [
    Case(
        name=f"recipe: {name}",
        given=(copy("build"), write("recipe.yaml", content)),
        command="megabert pretrain --recipe recipe.yaml --data.path build --run-dir new --device cpu",
        code=2,
        says=(says,),
        quick=name == "not UTF-8",
    )
    for name, content, says in RECIPES
]
