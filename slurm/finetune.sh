#!/usr/bin/env bash
# From pre-trained weights to scores: sbatch slurm/finetune.sh [FLAGS of megabert finetune]
#
#   TASK=glue (default): every task that the folder FINETUNE_DATA holds, one after the other, on one GPU
#   sbatch --gpus-per-node=8 slurm/finetune.sh --learning-rates 1e-5 3e-5 --seeds 5: a grid, a cell per GPU
#   TASK=squad FINETUNE_DATA=squad sbatch --ntasks-per-node=8 --gpus-per-node=8 slurm/finetune.sh --seeds 3
#
# A job that is requeued or submitted again keeps the runs that have finished and starts the unfinished one again. On a
# login node, `bash slurm/finetune.sh` only checks. Submit from the project's folder. docs/finetuning.md says more.
#SBATCH --job-name=bert-finetune
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-cpu=4G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

TASK=${TASK:-glue}                             # a task of `megabert finetune --help`
MODEL=${MODEL:-runs/bert_large}                # run folder or Hugging Face folder
FINETUNE_DATA=${FINETUNE_DATA:-data/glue}      # labelled examples, on a file system that all nodes share
FINETUNE_DIR=${FINETUNE_DIR:-runs/finetune_$TASK} # results, likewise shared
DEVICE=${DEVICE:-cuda}                         # cuda | cpu
CHECK=${CHECK:-}                               # set: only check, even inside a job
DOCTOR=${DOCTOR:-yes}                          # no: start without `megabert doctor --quick`
VENV=${VENV:-.venv}                            # virtualenv of a bare environment
CONTAINER=${CONTAINER:-bare}                   # bare | pyxis | apptainer
IMAGE=${IMAGE:-}                               # for pyxis and apptainer
MOUNTS=${MOUNTS:-$PWD:$PWD}                    # for pyxis and apptainer: data and runs have to be inside
SUBMIT_OPTIONS=${SUBMIT_OPTIONS:-}             # what sbatch will be given, for the check
RUN_DIR=$FINETUNE_DIR

# In a job $0 is SLURM's copy of this script.
for root in "$(dirname "$0")/.." "$PWD" "${SLURM_SUBMIT_DIR:-}"; do [ ! -e "$root/slurm/lib.sh" ] || break; done
[ -e "$root/slurm/lib.sh" ] || { echo "slurm: submit from the project's folder; $PWD is not it." >&2 && exit 2; }
# shellcheck source=slurm/lib.sh
source "$root/slurm/lib.sh"
finetune "$@"
