"""Settings that no type check of a single field refuses: foreign fields, engine files, flags without effect, limits."""

import json

from bad_input.given import copy, set_json, write
from bad_input.harness import Case
from bad_input.material import run_flags

PRETRAIN = f"megabert pretrain {run_flags()} --run-dir new --device cpu"
BUILD = "megabert-data build --input text.jsonl --output out --workers 1"
FILL_MASK = "megabert fill-mask --model hf 'the [MASK] ship'"

# field of config.json, value: each names a model that megabert does not have, or no model at all
FOREIGN = (
    ("is_decoder", True),
    ("is_decoder", 0),
    ("is_encoder_decoder", True),
    ("add_cross_attention", True),
    ("position_embedding_type", "relative_key"),
    ("position_embedding_type", None),
    ("pruned_heads", {"0": [1]}),
    ("auto_map", {"AutoModel": "own.Model"}),
    ("quantization_config", {"bits": 4}),
    ("embedding_size", 7),
    ("hidden_size", None),
    ("hidden_size", True),
    ("hidden_size", 32.0),
    ("hidden_size", "32"),
    ("hidden_dropout_prob", "0.1"),
    ("hidden_act", False),
    ("layer_norm_eps", 0),
    ("num_hiden_layers", 2),
    ("rope_theta", 10000.0),
    ("layer_types", ["full_attention"]),
    ("swa_window", 3),
)

# content of an engine file, what the message names
ENGINES = (
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": True}}, "reduce_bucket_size"),
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": "5e8"}}, "reduce_bucket_size"),
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": -1}}, "reduce_bucket_size"),
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": 0}}, "reduce_bucket_size"),
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": 10**30}}, "reduce_bucket_size"),
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": [1]}}, "reduce_bucket_size"),
    ({"zero_optimization": {"stage": 1, "overlap_comm": "no"}}, "overlap_comm"),
    ({"zero_optimization": {"stage": 1, "overlap_comm": 1}}, "overlap_comm"),
    ({"zero_optimization": {"stage": True}}, "stage"),
    ({"zero_optimization": {"stage": [1]}}, "stage"),
    ({"zero_optimization": {"stage": {}}}, "stage"),
    ({"zero_optimization": {"stage": -1}}, "stage"),
    ({"zero_optimization": []}, "zero_optimization"),
    ({"zero_optimization": None}, "zero_optimization"),
    ({"fp16": {"loss_scale": "big"}}, "loss_scale"),
    ({"comms_logger": {"enabled": True}}, "--profile"),
    ({"flops_profiler": {"enabled": True}}, "--profile"),
    ({"wall_clock_breakdown": True}, "--profile"),
    ({"steps_per_print": 2.5}, "steps_per_print"),
)

# command, needs, flags added, what the message names
IDLE_AND_LIMITS = (
    (PRETRAIN, "build", "--world-size 3", "--world-size"),
    (PRETRAIN, "build", "--gpu h100", "--gpu"),
    (PRETRAIN, "build", "--recipe ''", "--recipe"),
    (PRETRAIN, "build", "--run-dir ''", "--run-dir"),
    (PRETRAIN, "build", "--lr 1e-3", "--phases.0.learning-rate"),
    (PRETRAIN, "build", "--precision fp16", "precision"),
    (PRETRAIN, "build", "--profile 5-2", "5-2"),
    (PRETRAIN, "build", "--profile 1_0", "1_0"),
    (PRETRAIN, "build", "--logging.trackers mlflow", "'trackio' or 'wandb'"),
    (PRETRAIN, "build", "--logging.trackers wandb trackio wandb", "names a tracker twice"),
    (PRETRAIN, "build", "--logging.tracker-project own", "--logging.tracker-project"),
    (PRETRAIN, "build", "--logging.trackers wandb --logging.tracker-project ../own", "tracker_project"),
    (PRETRAIN, "build", "--logging.trackers trackio --logging.tracker-mode live", "'offline' or 'online'"),
    (PRETRAIN, "build", "--optimizer.name adamw --optimizer.lamb-variant paper", "lamb-variant"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --optimizer.lamb-variant paper", "lamb-variant"),
    (
        PRETRAIN,
        "build",
        "--optimizer.name stable_adamw --optimizer.max-grad-norm 1",
        "max_grad_norm=1 with name=stable_adamw",
    ),
    (PRETRAIN, "build", "--optimizer.name adamw --optimizer.clip-both", "--optimizer.clip-both"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --ops.lamb apex", "ops.lamb=apex goes with optimizer.name=lamb"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --optimizer.clip-both maybe", "maybe"),
    (PRETRAIN, "build", "--optimizer.name stable_adamw --optimizer.clip-both", "nothing is clipped"),
    (PRETRAIN, "build", "--optimizer.name stable_adam", "stable_adamw"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.max-grad-norm 1", "max_grad_norm=1 with name=muon"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-momentum 1", "muon_momentum"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-scaling rms", "muon_scaling"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-dtype fp16", "muon_dtype"),
    (PRETRAIN, "build", "--optimizer.name muon --optimizer.muon-adamw-ratio 0", "muon_adamw_ratio"),
    (PRETRAIN, "build", "--optimizer.name adamw --optimizer.muon-heads", "muon-heads"),
    (PRETRAIN, "build", "--optimizer.name muon --ops.lamb triton", "--ops.lamb"),
    (PRETRAIN, "build", "--rollback.spike-steps 3", "spike-steps"),
    (PRETRAIN, "build", "--phases.0.decay cosine --phases.0.decay-power 2", "decay_power"),
    (PRETRAIN, "build", "--phases.0.tokens true", "tokens"),
    (PRETRAIN, "build", "--phases.0.tokens 1e18", "tokens"),
    (PRETRAIN, "build", "--phases.0.tokens 1e15", "tokens"),
    (PRETRAIN, "build", "--phases.0.steps 1e15", "steps"),
    (PRETRAIN, "build", "--phases.0.global-batch-size 1e9", "global_batch_size"),
    (PRETRAIN, "build", "--phases.0.initial-batch-size 1 --phases.0.batch-warmup-tokens 1e15", "batch_warmup_tokens"),
    (PRETRAIN, "build", "--micro-batch-tokens 1e15", "micro_batch_tokens"),
    (PRETRAIN, "build", "--watchdog.min-step-s 1e300", "min_step_s"),
    (PRETRAIN, "build", f"--seed {'9' * 400}", "seed"),
    (PRETRAIN, "build", "--fork run@0_4", "fork"),
    (BUILD, "text.jsonl", "--tokenizer out --vocab-size 300", "vocab-size"),
    (BUILD, "text.jsonl", "--sources.3.weight 2", "sources"),
    (BUILD, "text.jsonl", "--clean.min-characters 3", "min-characters"),
    (BUILD, "text.jsonl", "--clean.near-duplicate-words 3", "near-duplicate-words"),
    (BUILD, "text.jsonl", "--clean.near-duplicate-bands 3", "near-duplicate-bands"),
    (BUILD, "text.jsonl", "--clean.near-duplicate-rows 3", "near-duplicate-rows"),
    (BUILD, "text.jsonl", "--workers 1 --mpi", "--mpi"),
    ("megabert-data vocab --input text.jsonl --output out", "text.jsonl", "--dupe-factor 3", "--dupe-factor"),
    ("megabert estimate", "text.jsonl", "--seed 3", "--seed"),
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
        for field, value in FOREIGN
    ),
    *(
        Case(
            name=f"engine file: {json.dumps(content)}",
            given=(copy("build"), write("own.json", json.dumps(content))),
            command=f"{PRETRAIN} --engine own.json",
            code=2,
            says=(says, "own.json"),
            leaves=("new", "new/*"),
            quick=content == {"zero_optimization": {"stage": True}},
        )
        for content, says in ENGINES
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
