"""Lists the kernel variants that training launches on an H100, and whether the card's parity part launches each.

PYTHONPATH=tests:. python tests/unit/benchmarks/list_variants.py > benchmarks/gpu/variants.txt
"""

import torch
from support.recorded_launches import recording
from unit.benchmarks.test_parity_covers_training import TRAINED, variants_of_parity

SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "f32", torch.float64: "f64", torch.int32: "i32"}


def main() -> None:
    """Print a line per variant."""
    compared, users = variants_of_parity(), {}
    for name, train in TRAINED.items():
        with recording() as launched:
            train()
        for variant in launched:
            users.setdefault(variant, []).append(name)
    missing = len(set(users) - compared)
    print(f"{len(users)} variants in training, {missing} of them not in parity; {len(compared)} in parity")
    print("kernel | tensors (- if absent) | constants | launched by | in parity")
    for variant in sorted(users, key=str):
        kernel, dtypes, constants = variant
        tensors = " ".join("-" if dtype is None else SHORT.get(dtype, str(dtype)) for dtype in dtypes)
        options = " ".join(f"{name}={value}" for name, value in constants)
        launched_by = "; ".join(users[variant])
        print(f"{kernel} | {tensors} | {options} | {launched_by} | {'yes' if variant in compared else 'NO'}")


if __name__ == "__main__":
    main()
