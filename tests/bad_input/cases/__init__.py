"""The table of bad inputs: a module for each kind, a row for each case."""

from bad_input.cases import (
    environment,
    exports,
    flags,
    grids,
    json_files,
    labels,
    limits,
    links,
    models,
    names,
    paths,
    probes,
    recipes,
    settings,
    shards,
    text,
    tokenizers,
)

CASES = [
    case
    for module in (
        *(json_files, flags, paths, links, limits, names, settings, text, shards, models, labels, environment),
        *(exports, grids, probes, recipes, tokenizers),
    )
    for case in module.CASES
]
"""All cases; their names are unique."""
