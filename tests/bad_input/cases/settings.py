"""Settings that no type check of a single field refuses: foreign fields, engine files, flags without effect, limits."""

import json

from bad_input.given import copy, set_json, write
from bad_input.harness import Case
from bad_input.material import run_flags

PRETRAIN = f"megabert pretrain {run_flags()} --run-dir new --device cpu"
BUILD = "megabert-data build --input text.jsonl --output out --workers 1"
FILL_MASK = "megabert fill-mask --model hf 'the [MASK] ship'"

# field of config.json, values: each names a model that megabert does not have, or no model at all
FOREIGN = {
    "is_decoder": [True, 0],
    "is_encoder_decoder": [True],
    "add_cross_attention": [True],
    "pruned_heads": [{"0": [1]}],
    "auto_map": [{"AutoModel": "own.Model"}],
    "quantization_config": [{"bits": 4}],
    "embedding_size": [7],
    "hidden_size": [None, True, 32.0, "32"],
    "hidden_dropout_prob": ["0.1"],
    "hidden_act": [False],
    "layer_norm_eps": [0],
    "num_hiden_layers": [2],
    "rope_theta": [10000.0],
    "layer_types": [["full_attention"]],
    "swa_window": [3],
}

# command, needs, flags added, what the message names
IDLE_AND_LIMITS = (
    (PRETRAIN, "build", "--precision fp16", "precision"),
    (PRETRAIN, "build", "--profile 5-2", "5-2"),
    (PRETRAIN, "build", "--profile 1_0", "1_0"),
    (PRETRAIN, "build", "--logging.trackers mlflow", "'trackio' or 'wandb'"),
    (PRETRAIN, "build", "--logging.trackers wandb trackio wandb", "names a tracker twice"),
    (PRETRAIN, "build", "--logging.trackers wandb --logging.tracker-project ../own", "tracker_project"),
    (PRETRAIN, "build", "--logging.trackers trackio --logging.tracker-mode live", "'offline' or 'online'"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --optimizer.max-grad-norm 1", "with name=stable_adamw"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --ops.lamb apex", "ops.lamb=apex goes with optimizer.name=lamb"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --optimizer.clip-both maybe", "maybe"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --optimizer.clip-both", "nothing is clipped"),
    (PRETRAIN, "build", "--optimizer.name stable_adam", "stable_adamw"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.max-grad-norm 1", "max_grad_norm=1 with name=muon"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-momentum 1", "muon_momentum"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-scaling rms", "muon_scaling"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-dtype fp16", "muon_dtype"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-adamw-ratio 0", "muon_adamw_ratio"),
    (PRETRAIN, "build", "--phases.0.tokens 1e15", "tokens"),
    (PRETRAIN, "build", "--fork run@0_4", "fork"),
    (BUILD, "text.jsonl", "--workers 1 --mpi", "--mpi"),
    ("megabert export run --to out", "run", "--checkpoint 0_4", "0_4"),
    (FILL_MASK, "hf", "--checkpoint best", "best"),
)

CASES = [
    *(
        Case(
            name=f"config.json: {field} {json.dumps(value)}",
            given=(copy("hf"), set_json("hf/config.json", field, value)),
            command=FILL_MASK,
            code=2,
            says=(field, "config.json"),
            quick=field == "num_hiden_layers",
        )
        for field, values in FOREIGN.items()
        for value in values
    ),
    Case(
        name="engine file: a stage that is true",
        given=(copy("build"), write("own.json", '{"zero_optimization": {"stage": true}}')),
        command=f"{PRETRAIN} --engine own.json",
        code=2,
        says=("stage", "own.json"),
        leaves=("new", "new/*"),
        quick=True,
    ),
    *(
        Case(
            name=f"{' '.join(command.split()[:2])}, idle or beyond a limit: {flags[:60]}",
            given=(copy(needs),),
            command=f"{command} {flags}",
            code=(2, 3, 4),
            says=(says,),
            leaves=("new", "new/*"),
            quick=flags == "--phases.0.tokens 1e15",
        )
        for command, needs, flags, says in IDLE_AND_LIMITS
    ),
]
