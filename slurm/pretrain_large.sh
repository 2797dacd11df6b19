#!/usr/bin/env bash
# BERT-Large, both phases of NVIDIA's LAMB recipe: sbatch slurm/pretrain_large.sh [FLAGS of megabert pretrain]
#
#   phase 1: 7,038 steps of 65,536 instances of 128 tokens, learning rate 6e-3, warm-up 28.43%, polynomial decay 0.5
#   phase 2: 1,563 steps of 32,768 instances of 512 tokens, learning rate 4e-3, warm-up 12.8%
#
# Any other recipe by its name, on as many nodes as it needs: RECIPE=bert_base sbatch --nodes=2 slurm/pretrain_large.sh
#
# On a login node, `bash slurm/pretrain_large.sh` only checks. Submit from the project's folder. docs/slurm.md says more.
#SBATCH --job-name=bert-large
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

RECIPE=${RECIPE:-bert_large}
DATA=${DATA:-data/prepared}         # what prepare_data.sh wrote, on a file system that all nodes share
RUN_DIR=${RUN_DIR:-runs/$RECIPE}    # likewise shared; a job that finds a run there resumes it
DEVICE=${DEVICE:-cuda}              # cuda | cpu
GPU=${GPU:-h200}                    # the nodes' GPUs, a name of `megabert estimate --help`: what the check plans for
CHECK=${CHECK:-}                    # set: only check, even inside a job
DOCTOR=${DOCTOR:-yes}               # yes | no: devices, limits, disk and an all-reduce before training
VENV=${VENV:-.venv}                 # virtualenv of a bare environment
CONTAINER=${CONTAINER:-bare}        # bare | pyxis | apptainer
IMAGE=${IMAGE:-}                    # for pyxis and apptainer
MOUNTS=${MOUNTS:-$PWD:$PWD}         # for pyxis and apptainer: data and runs have to be inside
SUBMIT_OPTIONS=${SUBMIT_OPTIONS:-}  # what sbatch will be given, for the check: --partition=... --account=...

# In a job $0 is SLURM's copy of this script.
for root in "$(dirname "$0")/.." "$PWD" "${SLURM_SUBMIT_DIR:-}"; do [ ! -e "$root/slurm/lib.sh" ] || break; done
[ -e "$root/slurm/lib.sh" ] || { echo "slurm: submit from the project's folder; $PWD is not it." >&2 && exit 2; }
# shellcheck source=slurm/lib.sh
source "$root/slurm/lib.sh"
pretrain "$@"
