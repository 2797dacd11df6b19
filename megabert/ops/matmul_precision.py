"""How exact matrix products are, set on purpose: torch's defaults do not all suit training, and they change."""

import torch


def set_matmul_precision() -> None:
    """Let products in 16 bits add up in float32 from end to end, and those in float32 be float32.

    cuBLAS cuts a product with few tiles along its inner dimension, as the gradient of a weight is: 32,768 tokens over
    1,024 x 1,024. By torch's default the parts of a 16-bit product are added up in 16 bits. TF32 would keep 10 bits of
    a float32 product's inputs; training in float32 wants them all.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("highest")
