#!/usr/bin/env bash
# From one archive to a BERT, on one card in 3.5 minutes: both phases by LAMB, killed with -9 once and resumed on the way,
# export, SNLI from it and from random weights, and a row of what came out.
#
#   benchmarks/gpu/speedrun.sh OUT [--tiny]    OUT/speedrun.json and a log of each step; --tiny: a rehearsal on a CPU
#
#   ARCHIVE   `python -m benchmarks.gpu.speedrun pack` has made it (build/speedrun.tar.xz)
#   DEADLINE  seconds for all of it (210; 2,100 for --tiny). Steps that are late are cut, and the row names them
#   WORK      everything else is written there, anew each time (build/speedrun-run)
#   PYTHON    a Python with torch and what megabert needs (python3)
set -euo pipefail
out=$(realpath -m "$1") root=$(realpath "$(dirname "$0")/../..")
archive=${ARCHIVE:-$root/build/speedrun.tar.xz} work=${WORK:-$root/build/speedrun-run} python=${PYTHON:-python3}
kill_at=1300 deadline=${DEADLINE:-210} train=() tune=(--global-batch-size 128 --learning-rate 3e-4)
if [ "${2:-}" = --tiny ]; then
  kill_at=15 deadline=${DEADLINE:-2100}
  train=(
    --model.hidden-size 64 --model.num-hidden-layers 2 --model.num-attention-heads 2 --model.intermediate-size 128
    --phases.0.steps 24 --phases.0.global-batch-size 16 --phases.1.steps 4 --phases.1.global-batch-size 4
    --checkpoint.every-steps 10 --validation.max-instances 16 --logging.every-steps 1 --shards.vocab-size null
  )
  tune+=(--max-train-examples 256 --max-eval-examples 64)
fi
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}

left() { echo $((SECONDS + $1 < deadline ? deadline - SECONDS - $1 : 1)); }
limited() { # SECONDS_TO_SPARE NAME COMMAND...: a step, ended in time for the steps after it
  local code=0
  timeout --foreground -k 8 "$(left "$1")" "$python" -m megabert "${@:3}" >"$out/$2.log" 2>&1 || code=$?
  case $code in
    0) ;;
    124 | 137) echo "$2" >>"$work/cut" ;;
    *) tail -n 5 "$out/$2.log" >&2 && exit "$code" ;;
  esac
}

rm -rf "$work" && mkdir -p "$work" "$out" && cd "$root"
"$python" -m tarfile -e "$archive" "$work"
train=(pretrain --recipe speedrun --data.path "$work" --run-dir "$work/run" "${train[@]}")
"$python" -m megabert "${train[@]}" >"$out/killed.log" 2>&1 &
until grep -qs "\"step\": ${kill_at}[,}]" "$work/run/metrics.jsonl" || ! kill -0 $! || [ "$(left 110)" = 1 ]; do sleep 0.2; done
kill -9 $! || { tail -n 5 "$out/killed.log" >&2 && exit 1; }
limited 55 training "${train[@]}"
limited 45 export export "$work/run" --to "$work/model"
tune=(finetune snli --model "$work/model" --data "$work/snli" --epochs 1 "${tune[@]}")
limited 4 pretrained "${tune[@]}" --output-dir "$work/pretrained" & trained=$!
limited 4 random "${tune[@]}" --output-dir "$work/random" --random-weights true
wait "$trained"
"$python" -m benchmarks.gpu.speedrun row "$out" "$work" "$SECONDS"
