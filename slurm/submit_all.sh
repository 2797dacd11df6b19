#!/usr/bin/env bash
# The whole chain, each job after the one before it: prepare -> pretrain -> finetune. Run on a login node:
#   INPUT='texts/*.txt' FINETUNE_DATA=data/glue bash slurm/submit_all.sh [FLAGS of megabert pretrain]
#
# Settings of the single scripts are passed on by their names (INPUT, DATA, RUN_DIR, VENV, CONTAINER, ...). Shards are built
# for RECIPE (DATA_FLAGS and CONFIG override it); existing ones are not built again. The first job is checked before it is
# submitted. Without FINETUNE_DATA there is no fine-tuning.
set -euo pipefail

RECIPE=${RECIPE:-bert_large}          # what is pre-trained; a smaller one needs fewer nodes: PRETRAIN_OPTIONS=--nodes=2
DATA=${DATA:-data/prepared}           # where the shards are, or will be
PREPARE_OPTIONS=${PREPARE_OPTIONS:-}  # for sbatch: --partition=... --account=... --nodes=...
PRETRAIN_OPTIONS=${PRETRAIN_OPTIONS:-}
FINETUNE_OPTIONS=${FINETUNE_OPTIONS:-}
FINETUNE_DATA=${FINETUNE_DATA:-}      # labelled examples; TASK says which (glue)
export DATA RECIPE

cd "$(dirname "$0")/.."
script=slurm/pretrain_large.sh
name=${RECIPE##*/} # a recipe may be a file
[ -z "$FINETUNE_DATA" ] || [ -e "$FINETUNE_DATA" ] ||
  { echo "slurm: FINETUNE_DATA=$FINETUNE_DATA is not there: name labelled examples, or leave it out." >&2 && exit 2; }

# submit OPTIONS... SCRIPT FLAGS...: print the job's number. Where a job of the chain fails, those after it are cancelled instead of waiting forever.
submit() { sbatch --parsable --kill-on-invalid-dep=yes "$@" | cut -d';' -f1; }

# check_first OPTIONS SCRIPT FLAGS...: inside an interactive job (salloc) a script would not check, but work.
check_first() { env -u SLURM_JOB_ID SUBMIT_OPTIONS="$1" OUTPUT="$DATA" bash "${@:2}"; }

after=()
if [ ! -d "$DATA/instances" ]; then
  check_first "$PREPARE_OPTIONS" slurm/prepare_data.sh --for "$RECIPE"
  # shellcheck disable=SC2086  # several options in one variable
  prepared=$(OUTPUT=$DATA submit $PREPARE_OPTIONS slurm/prepare_data.sh --for "$RECIPE")
  echo "prepare   $prepared"
  after=(--dependency="afterok:$prepared")
else
  check_first "$PRETRAIN_OPTIONS" "$script" "$@"
fi
# shellcheck disable=SC2086
pretrained=$(submit --job-name="$(tr _ - <<<"${name%.yaml}")" $PRETRAIN_OPTIONS "${after[@]}" "$script" "$@")
echo "pretrain  $pretrained"
if [ -n "$FINETUNE_DATA" ]; then
  # shellcheck disable=SC2086
  finetuned=$(MODEL=${RUN_DIR:-runs/$RECIPE} FINETUNE_DATA=$FINETUNE_DATA \
    submit $FINETUNE_OPTIONS --dependency="afterok:$pretrained" slurm/finetune.sh)
  echo "finetune  $finetuned"
fi
