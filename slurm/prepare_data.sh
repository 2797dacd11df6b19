#!/usr/bin/env bash
# Text to shards over the nodes of a cluster: sbatch slurm/prepare_data.sh
#
# Run it again after a time limit or a failure: finished units are kept, and the bytes do not depend on the nodes.
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
MOUNTS=${MOUNTS:-$PWD:$PWD}              # for pyxis and apptainer

arguments=(build --output "$OUTPUT" --mpi)
[ -z "$CONFIG" ] || arguments+=(--config "$CONFIG")
[ -z "$INPUT" ] || arguments+=(--input "$INPUT")
# shellcheck disable=SC2206  # several flags in one variable
arguments+=($DATA_FLAGS)

command=(megabert-data)
launch=(srun --mpi="$MPI" --kill-on-bad-exit=1)
case $CONTAINER in
  bare) [ ! -x "$VENV/bin/megabert-data" ] || command=("$VENV/bin/megabert-data") ;;
  pyxis) launch+=(--container-image="$IMAGE" --container-mounts="$MOUNTS") ;;
  apptainer) command=(apptainer exec --bind "$MOUNTS" "$IMAGE" megabert-data) ;;
  *) echo "CONTAINER=$CONTAINER: allowed are bare, pyxis and apptainer" >&2; exit 2 ;;
esac

# Ranks keep to one thread each; the tasks are the parallelism.
export OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 ARROW_NUM_THREADS=1
unset SLURM_EXPORT_ENV                   # with sbatch --export=NONE the tasks would have no PATH

interrupted=
trap 'interrupted=yes; kill -TERM "$pid" 2>/dev/null' TERM USR1
"${launch[@]}" "${command[@]}" "${arguments[@]}" &
pid=$!
code=0
wait "$pid" || code=$?
while kill -0 "$pid" 2>/dev/null; do code=0; wait "$pid" || code=$?; done
# Stopped before the time limit: the same job continues where it was.
if [ -n "$interrupted" ] && [ "$code" -ne 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
