#!/usr/bin/env bash
# Rates, a run, and the run next to its prediction, one after the other on this machine.
#
#   DATA    folder of a `megabert-data build --for debug`
#   OUT     everything is written below it
#   RANKS   ranks, one thread each (1)
#   CLOCK   cpu: count CPU seconds of the process, on a machine that is busy with something else; one rank only
set -euo pipefail
shards=$DATA out=$OUT ranks=${RANKS:-1}
export OMP_NUM_THREADS=1
mkdir -p "$out"
python=${VENV:-.venv}/bin/python
launch=("$python" -m megabert)
[ "$ranks" = 1 ] || launch=("$python" -m torch.distributed.run --standalone --nproc_per_node "$ranks" -m megabert)
clock='import sys, time; time.perf_counter = time.process_time; from megabert.cli import main; sys.exit(main())'
[ "${CLOCK:-}" != cpu ] || launch=("$python" -c "$clock")
# Six layers: the doctor measures one and four, so that the prediction is not a measurement of the same thing.
run=(
  --recipe debug --data.path "$shards" --device cpu
  --model.hidden-size 256 --model.num-attention-heads 4 --model.intermediate-size 1024 --model.num-hidden-layers 6
  --model.hidden-dropout-prob 0.1 --model.attention-probs-dropout-prob 0.1
  --phases.0.global-batch-size 16 --phases.1.global-batch-size 4 --phases.0.steps 24 --phases.1.steps 16
)
set -x
time "${launch[@]}" doctor --prove "${run[@]}" --run-dir "$out/run" --save "$out/proof.json"
"${launch[@]}" pretrain "${run[@]}" --run-dir "$out/run" --logging.every_steps 2 --validation.max_instances 8 2> "$out/run.log"
"$python" -m megabert estimate "${run[@]:0:4}" "${run[@]:6}" --measured "$out/proof.json"
"$python" -m benchmarks.predictions.steps_of_a_run "$out/run" "$out/proof.json"
