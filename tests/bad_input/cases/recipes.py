"""Files that are no recipe."""

from bad_input.given import copy, write
from bad_input.harness import Case

# contents of a recipe, what the message names
RECIPES = (
    ("empty", "", "mapping"),
    ("digits without end", "seed: " + "9" * 5000 + "\n", "recipe.yaml"),
    ("not UTF-8", b"name: \xff\xfe\n", "recipe.yaml"),
    ("null byte", b"name: a\x00b\n", "recipe.yaml"),
    ("phases of nothing", "phases: []\n", "phases"),
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
