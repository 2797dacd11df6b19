"""Part `peers`: transformers' BertForPreTraining on the batches of `training`, and the ops of `ops` by other packages.

The former trains in pure bfloat16 with torch's fused AdamW, its cheapest step. Compilation, which is slow, comes last.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu import ops
from benchmarks.gpu.batches import Batch, random_batch
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.training import model_config, throughput
from megabert.settings.config.model import ModelConfig


def transformers_step(
    config: ModelConfig, batch: Batch, *, is_compiled: bool, device: torch.device, dtype: torch.dtype
) -> Callable[[Batch], None]:
    """Return transformers' BertForPreTraining as a step on the same sequences."""
    from transformers import BertConfig
    from transformers import BertForPreTraining as TheirBert

    their_config = BertConfig(
        vocab_size=-(-int(config.vocab_size) // 64) * 64,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        attn_implementation="sdpa",
    )
    with device:
        model = TheirBert(their_config).to(dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    forward: Callable[..., Any] = model
    if is_compiled:
        # By default torch compiles the second length for any length, which is slower.
        forward = torch.compile(model, backend="inductor" if device.type == "cuda" else "eager", dynamic=False)
    count, length = batch.next_sentence_label_B.numel(), batch.max_seqlen

    def step(batch: Batch) -> None:
        moved = batch.to(device)
        labels = torch.full((count * length,), -100, device=device)
        labels[moved.masked_positions_M] = moved.masked_ids_M
        optimizer.zero_grad(set_to_none=True)
        output = forward(
            input_ids=moved.input_ids_T.view(count, length),
            token_type_ids=moved.segment_ids_T.view(count, length),
            labels=labels.view(count, length),
            next_sentence_label=moved.next_sentence_label_B,
        )
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    config, dtype = model_config(sizes), torch.bfloat16 if device.type == "cuda" else torch.float32
    for name, turn in (("transformers sdpa", ops.PEERS), ("transformers sdpa torch.compile", ops.COMPILED)):
        for length in sizes.lengths:
            example, is_compiled = random_batch(sizes.tokens, length, sizes.vocabulary, 0), turn == ops.COMPILED
            make = partial(transformers_step, config, example, is_compiled=is_compiled, device=device, dtype=dtype)
            row = partial(throughput, make, config, sizes, length, steps=max(2, sizes.steps // 3))
            rows.measure(f"length {length} {name}", row, is_peer=True)
        ops.measure(rows, device, sizes, (turn,))
