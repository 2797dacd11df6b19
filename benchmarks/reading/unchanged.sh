#!/usr/bin/env bash
# What a change of the code must not change: prints hashes of three builds, of 200 steps of four runs, and of their
# exports. Run it before and after, on one machine, and compare:
#
#   benchmarks/reading/unchanged.sh CHECKOUT OUTPUT     CHECKOUT has a virtualenv in .venv (`make install`)
set -euo pipefail
checkout=$(cd "$1" && pwd) output=$2
bin=$checkout/.venv/bin
rm -rf "$output" && mkdir -p "$output"
output=$(cd "$output" && pwd)
cd "$checkout"
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PATH=$bin:$PATH

run() { "$@" >"$output/last.log" 2>&1 || { tail -20 "$output/last.log" >&2; exit 1; }; }
build() { run megabert-data build --format jsonl --validation-share 0.06 --workers 1 "$@"; }
train() { # launcher words, then --run-dir and the rest
  run "$@" --checkpoint.every-steps 200 --validation.every-steps 100 --logging.every-steps 1 --seed 7
}

english=examples/corpus/public_domain.jsonl korean=examples/corpus/korean.jsonl
build --input "$english" --output "$output/nsp" --uncased --vocab-size 2048 --dupe-factor 2 --lengths 128 512
build --input "$korean" --language ko --output "$output/none" --vocab-size 4096 --objective none --masking dynamic \
  --dupe-factor 1 --lengths 128 512
build --input "$english" --output "$output/sop" --tokenizer "$output/nsp/tokenizer" --objective sop --mask-unit span \
  --dupe-factor 1 --lengths 128

cat >"$output/electra.yaml" <<'YAML'
model: {family: electra, preset: tiny, generator_size: 0.5}
optimizer: {name: adamw, betas: [0.9, 0.99]}
phases: [{max_seq_length: 128, steps: 200, global_batch_size: 16, learning_rate: 2.0e-3, warmup_ratio: 0.1}]
micro_batch_tokens: 4096
YAML
train megabert pretrain --recipe demo_modern --data.path "$output/none" --run-dir "$output/demo" \
  --phases.0.steps 150 --phases.1.steps 50
train megabert pretrain --recipe debug --data.path "$output/nsp" --run-dir "$output/debug" \
  --phases.0.steps 180 --phases.1.steps 20
train megabert pretrain --config "$output/electra.yaml" --data.path "$output/none" --run-dir "$output/electra"
train torchrun --nproc_per_node 2 --master_port "$((29000 + RANDOM % 900))" -m megabert pretrain --recipe debug \
  --engine zero2 --precision bf16 --data.path "$output/nsp" --run-dir "$output/zero2" \
  --phases.0.steps 180 --phases.1.steps 20 --model.hidden-dropout-prob 0.1

for name in demo debug electra zero2; do run megabert export "$output/$name" --to "$output/$name-export"; done
python - "$output" <<'PYTHON'
import hashlib
import json
import pathlib
import sys

import pyarrow.ipc

output = pathlib.Path(sys.argv[1])


def show(name, parts):
    print(f"{name:16s}{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}")


for name in ("nsp", "none", "sop"):
    files = sorted((output / name / "instances").rglob("*.arrow"))
    readers = map(pyarrow.ipc.open_file, files)
    batches = (reader.get_batch(index) for reader in readers for index in range(reader.num_record_batches))
    show(f"shards {name}", (repr(batch.to_pydict()).encode() for batch in batches))
for name in ("demo", "debug", "electra", "zero2"):
    rows = [json.loads(line) for line in (output / name / "metrics.jsonl").read_text().splitlines()]
    values = [{key: value for key, value in row.items() if "loss" in key or key.endswith(("grad_norm", "/lr", "step"))} for row in rows]
    show(f"losses {name}", [json.dumps(values, sort_keys=True).encode()])
    files = sorted(path for path in (output / f"{name}-export").iterdir() if path.suffix in (".safetensors", ".json", ".txt"))
    show(f"export {name}", (path.name.encode() + path.read_bytes() for path in files))
PYTHON
