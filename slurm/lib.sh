# shellcheck shell=bash
# What the training scripts share: `pretrain FLAGS...` and `finetune FLAGS...` check on a login node and run in a job.
# Read by: RUN_DIR DEVICE CHECK VENV CONTAINER IMAGE MOUNTS SUBMIT_OPTIONS DOCTOR, for pretrain RECIPE DATA, for finetune
# TASK MODEL FINETUNE_DATA, set in the scripts.

# The same command goes on (docs/slurm.md): 75 saved on SIGTERM or SIGUSR1, 76 ended by the watchdog.
REQUEUE_CODES=' 75 76 '

say() { printf '%s\n' "slurm: $*" >&2; }
fail() {
  say "$*"
  exit 2
}

# Set `launch` (srun and its options) and `megabert` (the program behind it) for the chosen environment.
choose_environment() {
  launch=(srun --kill-on-bad-exit=1) # a dead rank would leave the others waiting
  # Since SLURM 22.05 a step does not inherit it.
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || launch+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
  megabert=(megabert)
  case $CONTAINER in
    bare) [ ! -x "$VENV/bin/megabert" ] || megabert=("$VENV/bin/megabert") ;;
    pyxis) launch+=(--container-image="$IMAGE" --container-mounts="$MOUNTS" --container-workdir="$PWD") ;;
    apptainer)
      megabert=(apptainer exec --bind "$MOUNTS" --pwd "$PWD" "$IMAGE" megabert)
      [ "$DEVICE" = cpu ] || megabert=(apptainer exec --nv "${megabert[@]:2}")
      ;;
    *) fail "CONTAINER=$CONTAINER: allowed are bare, pyxis and apptainer." ;;
  esac
  [ "$CONTAINER" = bare ] || [ -n "$IMAGE" ] || fail "CONTAINER=$CONTAINER needs IMAGE: docker/ makes one."
}

# check FLAGS...: `arguments` with --dry-run, and whether SLURM takes the job.
check() {
  local megabert launch
  choose_environment
  if [ "$CONTAINER" = pyxis ]; then # there is no container without a job
    say "CONTAINER=pyxis: configuration and data are checked by the job itself"
  else
    command -v "${megabert[0]}" >/dev/null ||
      fail "${megabert[0]} is not there. Install it (make install), or name its virtualenv: VENV=..."
    "${megabert[@]}" "${arguments[@]}" --dry-run
  fi
  command -v sbatch >/dev/null || fail "sbatch is not there: this is no login node of a SLURM cluster."
  # shellcheck disable=SC2086  # several options in one variable
  sbatch --test-only $SUBMIT_OPTIONS "$0"
  say "all is well; nothing was started. To start: sbatch $SUBMIT_OPTIONS $0 $*"
}

run() {
  local megabert launch pid='' code=0
  choose_environment
  # Here and not by the ranks: a container has no scontrol.
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  export MASTER_ADDR
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
  export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/megabert-triton-$SLURM_JOB_ID} # of the node: shared ones are slow
  export HF_HUB_OFFLINE=1                                                         # no network outside the job
  unset SLURM_EXPORT_ENV # with sbatch --export=NONE the tasks would have no PATH
  say "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), $SLURM_JOB_NUM_NODES nodes: $SLURM_JOB_NODELIST"

  # --signal reaches the ranks directly; what reaches this shell instead goes on to them.
  trap '[ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null || true' TERM USR1
  if [ "$DOCTOR" != no ]; then
    step "${launch[@]}" "${megabert[@]}" doctor --quick --device "$DEVICE" --run-dir "$RUN_DIR"
    [ "$code" = 0 ] || [ "$code" = 75 ] || say "the doctor's verdict (exit $code) is above; DOCTOR=no does without it"
  fi
  [ "$code" != 0 ] || step "${launch[@]}" "${megabert[@]}" "${arguments[@]}" --device "$DEVICE"
  if [[ $REQUEUE_CODES == *" $code "* ]]; then
    # A job that was cancelled, or that SLURM requeues by itself, is not running any more.
    if scontrol show job "$SLURM_JOB_ID" | grep -q 'JobState=RUNNING'; then
      say "stopped (exit $code); requeued"
      scontrol requeue "$SLURM_JOB_ID"
    else
      say "stopped (exit $code); not requeued here: the job was cancelled, or SLURM requeues it"
    fi
  fi
  return "$code"
}

# Run a command to its end, whatever signals come, and set `code`; `pid` is the process to signal meanwhile.
step() {
  "$@" &
  pid=$!
  # A trapped signal ends `wait` early.
  while true; do
    code=0
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  pid=''
}

is_job() { [ -n "${SLURM_JOB_ID:-}" ] && [ -z "$CHECK" ]; }

# pretrain FLAGS...: the job's work in a job, checks elsewhere. FLAGS go to `megabert pretrain`.
pretrain() {
  local arguments=(pretrain --recipe "$RECIPE" --data.path "$DATA" --run-dir "$RUN_DIR" "$@")
  if is_job; then
    run
  else
    [ -d "$DATA/instances" ] ||
      fail "DATA=$DATA holds no shards. Make them: OUTPUT=$DATA INPUT='texts/*.txt' sbatch slurm/prepare_data.sh" \
        "(or: megabert-data build --input 'texts/*.txt' --output $DATA), or name others: DATA=..."
    check "$@"
  fi
}

# finetune FLAGS...: likewise. FLAGS go to `megabert finetune`.
finetune() {
  local arguments=(finetune "$TASK" --model "$MODEL" --data "$FINETUNE_DATA" --output-dir "$RUN_DIR" "$@")
  if is_job; then
    run
  else
    [ -e "$FINETUNE_DATA" ] ||
      fail "FINETUNE_DATA=$FINETUNE_DATA is not there. Name a file or folder of labelled examples (docs/finetuning.md)."
    [ -d "$MODEL" ] ||
      fail "MODEL=$MODEL is not there. Pre-train it (sbatch slurm/pretrain_large.sh), or name a run or model folder: MODEL=..."
    check "$@"
  fi
}
