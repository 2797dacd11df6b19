#!/usr/bin/env bash
# Raw text to an encoder that transformers loads: vocabulary, shards, pre-training in phases, report, export, a small task.
# `make demo` runs it. Running it again resumes, or says that it is done.
#
#   CORPUS   english or korean, a file of examples/corpus
#   RECIPE   demo (BERT, next sentences, LAMB) or demo_modern (ModernBERT, AdamW)
#   RUN_DIR  everything is written below it (runs/demo, runs/demo-korean, ...)
#   VENV     virtualenv with megabert
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=${CORPUS:-english}
recipe=${RECIPE:-demo}
bin=${VENV:-.venv}/bin
started=$SECONDS

case $corpus in
  english)
    input=$here/corpus/public_domain.jsonl language=en vocabulary=(--uncased --vocab-size 2048)
    texts=("The people of the United [MASK] have spoken." "Captain Ahab stood upon the [MASK]." "I do not [MASK] what you mean.")
    ;;
  korean)
    input=$here/corpus/korean.jsonl language=ko vocabulary=(--vocab-size 4096)
    texts=("대통령령으로 [MASK] 바에 따라 신고하여야 한다." "이에 현행법의 문제를 [MASK]하려는 것임." "과태료를 [MASK]하도록 함.")
    ;;
  *)
    echo "demo: CORPUS=$corpus is unknown; allowed are english and korean." >&2
    exit 2
    ;;
esac
case $recipe in
  demo) class=BertForPreTraining ;;
  demo_modern) class=ModernBertForMaskedLM ;;
  *)
    echo "demo: RECIPE=$recipe is unknown; allowed are demo and demo_modern." >&2
    exit 2
    ;;
esac
# Another corpus or recipe is another run: it gets a folder of its own unless RUN_DIR names one.
run_dir=runs/$recipe
[ "$corpus" = english ] || run_dir=$run_dir-$corpus
run_dir=${RUN_DIR:-$run_dir}
data=$run_dir-data

say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - started)) >&2; }

say "text to vocabulary and shards: $data"
"$bin/megabert-data" build --input "$input" --format jsonl --language "$language" --output "$data" \
  --for "$recipe" "${vocabulary[@]}" --validation-share 0.06 --workers "$(nproc)"

say "pre-training with the recipe $recipe: $run_dir"
gpus=0
! command -v nvidia-smi >/dev/null || gpus=$("$bin/python" -c 'import torch; print(torch.cuda.device_count())')
# Named, so that DeepSpeed does not warn that it found no GPU.
if [ "$gpus" -gt 0 ]; then ranks=(--num_gpus "$gpus"); else ranks=(--num_accelerators 2) && export DS_ACCELERATOR=cpu; fi
# --quiet leaves the launcher's errors; what DeepSpeed says in a rank is in RUN_DIR/logs.
PATH=$bin:$PATH "$bin/deepspeed" --quiet "${ranks[@]}" --module megabert pretrain --recipe "$recipe" \
  --data.path "$data" --run-dir "$run_dir"

say "what it has learned"
arguments=()
for text in "${texts[@]}"; do arguments+=(--text "$text"); done
"$bin/megabert" report "$run_dir" --min-margin 1.0 "${arguments[@]}"

say "export to Hugging Face form"
"$bin/megabert" export "$run_dir" --to "$run_dir/exports/last"
"$bin/python" - "$run_dir/exports/last" "$class" <<'PYTHON'
import sys

import transformers
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
model = getattr(transformers, sys.argv[2]).from_pretrained(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
print(f"transformers loads it: {type(model).__name__}, {model.num_parameters():,} parameters, {len(tokenizer):,} pieces")
PYTHON

say "a small task, learned from these weights and from random ones"
"$bin/python" "$here/demo_task.py" "$corpus" "$run_dir/exports/last" "$run_dir/task"

cat <<EOF

shards       $data/instances
TensorBoard  $bin/tensorboard --logdir $run_dir/tb
loss curve   $run_dir/loss.png
export       $run_dir/exports/last
done in $((SECONDS - started)) s
EOF
