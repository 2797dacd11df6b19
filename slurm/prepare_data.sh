#!/usr/bin/env bash
# Text to shards over the nodes of a cluster: sbatch slurm/prepare_data.sh [FLAGS of megabert-data build]
#
# Run it again after a failure: finished units are kept, and the bytes do not depend on the nodes. Stopped before its time
# limit the job requeues itself. On a login node, `bash slurm/prepare_data.sh` only checks. Submit from the project's folder.
#SBATCH --job-name=megabert-data
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

CONFIG=${CONFIG:-}                       # YAML file with `sources:`; or INPUT
INPUT=${INPUT:-}                         # glob or URL, quoted; seen by megabert, not by the shell
OUTPUT=${OUTPUT:-data/prepared}          # on a file system that all nodes share
DATA_FLAGS=${DATA_FLAGS:-}               # further flags of `megabert-data build`, such as --vocab-size 30522
VENV=${VENV:-.venv}                      # a virtualenv with the extra [mpi]
MPI=${MPI:-pmi2}                         # pmi2 for MPICH (pip install mpich), pmix for Open MPI
CONTAINER=${CONTAINER:-bare}             # bare | pyxis | apptainer
IMAGE=${IMAGE:-}                         # for pyxis and apptainer
MOUNTS=${MOUNTS:-$PWD:$PWD}              # for pyxis and apptainer: texts and output have to be inside
CHECK=${CHECK:-}                         # set: only check, even inside a job
SUBMIT_OPTIONS=${SUBMIT_OPTIONS:-}       # what sbatch will be given, for the check
DEVICE=cpu                               # no GPU is asked for

# In a job $0 is SLURM's copy of this script.
for root in "$(dirname "$0")/.." "$PWD" "${SLURM_SUBMIT_DIR:-}"; do [ ! -e "$root/slurm/lib.sh" ] || break; done
[ -e "$root/slurm/lib.sh" ] || { echo "slurm: submit from the project's folder; $PWD is not it." >&2 && exit 2; }
# shellcheck source=slurm/lib.sh
source "$root/slurm/lib.sh"
prepare "$@"
