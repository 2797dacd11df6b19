#!/usr/bin/env bash
# The whole chain, each job after the one before it: prepare -> pretrain. Run on a login node: bash slurm/submit_all.sh
#
# Settings of the single scripts are passed on by their names (DATA, RUN_DIR, VENV, CONTAINER, ...). Shards that are
# there already are not made again.
set -euo pipefail

SIZE=${SIZE:-large}                   # large | base
DATA=${DATA:-data/prepared}           # where the shards are, or will be
PREPARE_OPTIONS=${PREPARE_OPTIONS:-}  # for sbatch: --partition=... --account=... --nodes=...
PRETRAIN_OPTIONS=${PRETRAIN_OPTIONS:-}
export DATA

cd "$(dirname "$0")/.."
script=slurm/pretrain_$SIZE.sh
[ -e "$script" ] || { echo "slurm: SIZE=$SIZE: allowed are large and base." >&2 && exit 2; }

# submit OPTIONS... SCRIPT FLAGS...: print the job's number. A chain that is broken goes away instead of waiting forever.
submit() { sbatch --parsable --kill-on-invalid-dep=yes "$@" | cut -d';' -f1; }

after=()
if [ ! -d "$DATA/instances" ]; then
  # shellcheck disable=SC2086  # several options in one variable
  prepared=$(OUTPUT=$DATA submit $PREPARE_OPTIONS slurm/prepare_data.sh)
  echo "prepare   $prepared"
  after=(--dependency="afterok:$prepared")
else
  SUBMIT_OPTIONS=$PRETRAIN_OPTIONS bash "$script" "$@"
fi
# shellcheck disable=SC2086
pretrained=$(submit $PRETRAIN_OPTIONS "${after[@]}" "$script" "$@")
echo "pretrain  $pretrained"
