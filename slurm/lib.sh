# shellcheck shell=bash
# What the scripts share: `prepare FLAGS...`, `pretrain FLAGS...` and `finetune FLAGS...` check on a login node and run
# in a job. Read by all: DEVICE CHECK VENV CONTAINER IMAGE MOUNTS SUBMIT_OPTIONS; by those that train: RUN_DIR DOCTOR; by
# prepare: CONFIG INPUT OUTPUT DATA_FLAGS MPI, by pretrain: RECIPE DATA GPU, by finetune: TASK MODEL FINETUNE_DATA.

# Exit codes after which the same command resumes the run (docs/slurm.md): 75, a checkpoint was saved on SIGTERM or
# SIGUSR1; 76, the watchdog ended a hang; 138, SIGUSR1 came before a rank could answer it or hold it.
REQUEUE_CODES=' 75 76 138 '

# A signal to a script that has only begun; `run` and `build` answer it.
pending=''
[ -z "${SLURM_JOB_ID:-}" ] || trap 'pending=USR1' USR1

# Run by each task before its program: /tmp is everybody's, and Triton loads machine code from this folder.
# shellcheck disable=SC2016  # the task's shell expands it
OWN_CACHE='mkdir -m 700 "$TRITON_CACHE_DIR" 2>/dev/null
[ -O "$TRITON_CACHE_DIR" ] && [ ! -L "$TRITON_CACHE_DIR" ] && exec "$@"
echo "slurm: $TRITON_CACHE_DIR on $(uname -n) is no folder of yours. Name another one: TRITON_CACHE_DIR=..." >&2
exit 2'

say() { printf '%s\n' "slurm: $*" >&2; }
fail() {
  say "$*"
  exit 2
}

# choose_environment PROGRAM: set `launch` (srun and its options) and `program` (what is behind it).
choose_environment() {
  launch=(srun --kill-on-bad-exit=1) # otherwise the other ranks wait for a dead one
  # Since SLURM 22.05 a job step does not inherit the job's --cpus-per-task.
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || launch+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
  program=("$1")
  case $CONTAINER in
    bare) [ ! -x "$VENV/bin/$1" ] || program=("$VENV/bin/$1") ;;
    pyxis) launch+=(--container-image="$IMAGE" --container-mounts="$MOUNTS" --container-workdir="$PWD") ;;
    apptainer)
      program=(apptainer exec --bind "$MOUNTS" --pwd "$PWD" "$IMAGE" "$1")
      [ "$DEVICE" = cpu ] || program=(apptainer exec --nv "${program[@]:2}")
      ;;
    *) fail "CONTAINER=$CONTAINER: allowed are bare, pyxis and apptainer." ;;
  esac
  [ "$CONTAINER" = bare ] || [ -n "$IMAGE" ] || fail "CONTAINER=$CONTAINER needs IMAGE: docker/ makes one."
}

# ranks_of_job: how many tasks the job will have, by this script's #SBATCH lines and SUBMIT_OPTIONS, where later ones count.
ranks_of_job() {
  local word option='' nodes=1 per_node=1 all=''
  for word in $(sed -n 's/^#SBATCH //p' "$0") $SUBMIT_OPTIONS; do
    case $word in
      --*=*) option=${word%%=*} word=${word#*=} ;;
      -[Nn][0-9]*) option=${word:0:2} word=${word:2} ;;
      -*) option=$word && continue ;;
    esac
    word=${word%%[!0-9]*} # of a range of nodes, 2-4, its least
    case $option in
      -N | --nodes) nodes=${word:-1} ;;
      --ntasks-per-node) per_node=${word:-1} all='' ;;
      -n | --ntasks) all=$word ;;
    esac
    option=''
  done
  echo "${all:-$((nodes * per_node))}"
}

# check PROGRAM FLAGS...: PROGRAM with `arguments`, `plan` and --dry-run, and whether SLURM takes the job.
check() {
  local program launch
  choose_environment "$1"
  shift
  if [ "$CONTAINER" = pyxis ]; then # pyxis starts containers only inside a job
    say "CONTAINER=pyxis: configuration and data are checked by the job itself"
  else
    command -v "${program[0]}" >/dev/null ||
      fail "${program[0]} is not there. Install it (make install), or name its virtualenv: VENV=..."
    "${program[@]}" "${arguments[0]}" "${plan[@]}" "${arguments[@]:1}" --dry-run
  fi
  command -v sbatch >/dev/null || fail "sbatch is not there: this is no login node of a SLURM cluster."
  # shellcheck disable=SC2086  # several options in one variable
  sbatch --test-only $SUBMIT_OPTIONS "$0"
  say "all checks passed; nothing was started. To start: sbatch $SUBMIT_OPTIONS $0 $*"
}

# run: training with `arguments`, after the doctor.
run() {
  local program launch hold=() pid='' code=0
  choose_environment megabert
  # SIGUSR1 is held until Python has imported what answers it; a rank that it ended meanwhile would be waited for.
  # Fine-tuning answers it at once. An env of before 2019 cannot hold signals.
  if [ "${arguments[0]}" = pretrain ] && env --block-signal=USR1 true 2>/dev/null; then hold=(env --block-signal=USR1); fi
  # Resolved here and not by the ranks, because a container has no scontrol.
  # Read whole: a reader that stops early, such as head, ends scontrol by SIGPIPE, and by pipefail the job.
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
  MASTER_ADDR=${MASTER_ADDR%%$'\n'*}
  export MASTER_ADDR
  # Fine-tuning may be a grid, which gives each of its processes a share of the cores.
  [ "${arguments[0]}" = finetune ] || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
  if [ -z "${TRITON_CACHE_DIR:-}" ]; then
    export TRITON_CACHE_DIR=/tmp/megabert-triton-$SLURM_JOB_ID # local to the node: a shared cache is slow
    hold+=(bash -c "$OWN_CACHE" bash)
  fi
  export HF_HUB_OFFLINE=1 # no network outside the job
  begin

  # --signal reaches the ranks directly. A signal that reaches this shell instead is forwarded to them.
  trap 'forward USR1' TERM USR1
  if [ "$DOCTOR" != no ]; then
    # The doctor's ranks end by themselves. If srun killed them after rank 0's verdict, their exit code would hide it.
    # But a rank that a signal has ended is waited for: --wait bounds that, and outlasts the doctor's own limits.
    step "${launch[@]}" --kill-on-bad-exit=0 --wait=180 "${hold[@]}" "${program[@]}" doctor --quick --device "$DEVICE" \
      --run-dir "$RUN_DIR"
    [ "$code" = 0 ] || is_requeued || say "the doctor's verdict (exit $code) is above; DOCTOR=no does without it"
  fi
  [ "$code" != 0 ] || step "${launch[@]}" "${hold[@]}" "${program[@]}" "${arguments[@]}" --device "$DEVICE"
  ! is_requeued || requeue
  return "$code"
}

is_requeued() { [[ $REQUEUE_CODES == *" $code "* ]]; }

# build: prepare data with `arguments`. Finished units of work are kept, so a signal may simply end the build.
build() {
  local program launch pid='' code=0 interrupted=''
  choose_environment megabert-data
  # One thread a rank: the parallelism is in the number of tasks.
  export OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 ARROW_NUM_THREADS=1
  begin
  # --signal=B: reaches this shell alone, so it forwards the signal.
  trap 'interrupted=yes; forward TERM' TERM USR1
  interrupted=${interrupted:-${pending:+yes}} # a signal that came before
  step "${launch[@]}" --mpi="$MPI" "${program[@]}" "${arguments[@]}" --mpi
  [ -z "$interrupted" ] || [ "$code" = 0 ] || requeue
  return "$code"
}

begin() {
  local exported=${SLURM_EXPORT_ENV:-}
  [[ ' NONE NIL ' != *" ${exported^^} "* ]] ||
    fail "--export=$exported keeps every setting from this job, which would do something else than was asked." \
      "Name one or more, the others have their defaults: sbatch --export=DATA=data/prepared,..."
  unset SLURM_EXPORT_ENV           # with sbatch --export=NAME=... the tasks would have no PATH
  unset RANK WORLD_SIZE LOCAL_RANK # of the shell that submitted: each task would be the rank that they name
  say "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), $SLURM_JOB_NUM_NODES nodes: $SLURM_JOB_NODELIST"
}

# Put the job back into the queue. If it was cancelled, or SLURM requeues it by itself, it is not running any more and
# is left alone.
requeue() {
  local job=$SLURM_JOB_ID
  # One task of an array has the number of the array, which would mean all of them.
  [ "${SLURM_ARRAY_JOB_ID:-}" != "$job" ] || job+=_$SLURM_ARRAY_TASK_ID
  if [[ $(scontrol show job "$job") == *JobState=RUNNING* ]]; then
    say "stopped (exit $code); requeued"
    scontrol requeue "$job"
  else
    say "stopped (exit $code); not requeued here: the job was cancelled, or SLURM requeues it"
  fi
}

# forward SIGNAL: send it to the command that `step` runs. If none runs, `step` starts no further one.
forward() {
  if [ -z "$pid" ] || ! kill -"$1" "$pid" 2>/dev/null; then
    pending=$1
  fi
}

# step COMMAND...: run it to its end, whatever signals arrive, and set `code`. Meanwhile `pid` is the process to signal.
# After a request to stop it starts nothing, and `code` is 75: a signal that a new process gets before it is the
# command would be lost.
step() {
  if [ -n "$pending" ]; then
    code=75 pending=''
    return
  fi
  "$@" &
  pid=$!
  # A signal may arrive after the command has started and before its number is known here.
  [ -z "$pending" ] || forward "$pending"
  pending=''
  # A trapped signal ends `wait` early although the command still runs: wait again.
  while true; do
    code=0
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  pid=''
}

is_job() { [ -n "${SLURM_JOB_ID:-}" ] && [ -z "$CHECK" ]; }

# prepare FLAGS...: the job's work in a job, checks elsewhere. FLAGS go to `megabert-data build`.
prepare() {
  local arguments=(build --output "$OUTPUT") plan=()
  [ -n "$CONFIG$INPUT" ] || fail "neither INPUT nor CONFIG is set. Name texts: INPUT='texts/*.txt', or a file: CONFIG=..."
  [ -z "$CONFIG" ] || arguments+=(--config "$CONFIG")
  [ -z "$INPUT" ] || arguments+=(--input "$INPUT")
  # shellcheck disable=SC2206  # several flags in one variable
  arguments+=($DATA_FLAGS "$@")
  if is_job; then
    build
  else
    check megabert-data "$@"
  fi
}

# pretrain FLAGS...: the job's work in a job, checks elsewhere. FLAGS go to `megabert pretrain`.
pretrain() {
  local arguments=(pretrain --recipe "$RECIPE" --data.path "$DATA" --run-dir "$RUN_DIR" "$@")
  if is_job; then
    run
  else
    [ -d "$DATA/instances" ] ||
      fail "DATA=$DATA holds no shards. Make them: OUTPUT=$DATA INPUT='texts/*.txt' sbatch slurm/prepare_data.sh" \
        "--for $RECIPE (or: megabert-data build --for $RECIPE --input 'texts/*.txt' --output $DATA)," \
        "or name others: DATA=..."
    # The job's ranks and GPUs, which a login node has not; or none of the GPUs that it has.
    local plan=(--world-size "$(ranks_of_job)")
    if [ "$DEVICE" = cpu ]; then plan+=(--device cpu); else plan+=(--gpu "$GPU"); fi
    say "planned for ${plan[*]}; SUBMIT_OPTIONS='--nodes=...' and GPU=... name others"
    check megabert "$@"
  fi
}

# finetune FLAGS...: the job's work in a job, checks elsewhere. FLAGS go to `megabert finetune`.
finetune() {
  local arguments=(finetune "$TASK" --model "$MODEL" --data "$FINETUNE_DATA" --output-dir "$RUN_DIR" "$@")
  if is_job; then
    run
  else
    [ -e "$FINETUNE_DATA" ] ||
      fail "FINETUNE_DATA=$FINETUNE_DATA is not there. Name a file or folder of labelled examples (docs/finetuning.md)."
    [ -d "$MODEL" ] ||
      fail "MODEL=$MODEL is not there. Pre-train it (sbatch slurm/pretrain_large.sh), or name a run or model folder: MODEL=..."
    # The job's device: a login node without a GPU makes no steps to measure the time of a grid that has GPUs.
    local plan=(--device "$DEVICE")
    check megabert "$@"
  fi
}
