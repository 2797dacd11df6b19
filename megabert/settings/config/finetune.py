"""The configuration of a fine-tuning: what ``megabert finetune`` takes as flags."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from megabert.settings.config import fields
from megabert.settings.config.model import DecayRate, Probability
from megabert.settings.config.run import OpsConfig

LearningRate = fields.Rate | Literal["auto"]


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class FinetuneConfig:
    """Data, columns, schedule and engine of a fine-tuning."""

    model: str
    """Weights to start from: a Hugging Face folder or a run folder."""
    checkpoint: str = "last"
    """Which checkpoint of a run folder to take: last, best or a step."""
    random_weights: bool = False
    """Take shape and tokenizer from the model but draw all weights from the seed, to see what pre-training is worth."""
    data: str
    """Training file, or a folder with train.* and dev.* (or validation.*, valid.*, test.*)."""
    eval_data: str | None = None
    """Evaluation file; by default the one next to the training file, or a held-out share of it."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training examples that is set aside for evaluation, by seed 0, if there is no evaluation file."""
    text_column: str | None = None
    """Column that holds the text, or for tagging the tokens; by default the task's."""
    pair_column: str | None = None
    """Column that holds the second text; by default the task's."""
    label_column: str | None = None
    """Column that holds the label; by default the task's."""
    language: Literal["en", "ko"] = "en"
    """How answers are scored: en takes F1 over words, as SQuAD does, ko over characters, as KorQuAD does."""
    max_train_examples: fields.CountOrNone = 0
    """Train on a fixed random subset of this size; 0 takes all."""
    max_eval_examples: fields.CountOrNone = 0
    """Evaluate on a fixed random subset of this size; 0 takes all."""
    max_seq_length: fields.SequenceLength | Literal["auto"] = "auto"
    """Longest sequence in tokens; auto means 384 for spans and 128 otherwise, at most the length that the model
    was trained on, as far as it states that, and its positions; in an evaluation, the length recorded with the model,
    or all that it reads."""
    doc_stride: Annotated[int, Field(ge=1, le=1 << 20)] = 128
    """Spans only: tokens from the start of one window of a long context to the next."""
    max_query_length: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    """Spans only: questions are cut to this many tokens."""
    max_answer_length: Annotated[int, Field(ge=1, le=1 << 20)] = 30
    """Spans only: longest answer in tokens."""
    n_best: Annotated[int, Field(ge=1, le=1000)] = 20
    """Spans only: how many answers are kept for each question."""
    null_threshold: Annotated[float, Field(ge=-1e9, le=1e9)] | Literal["auto"] = "auto"
    """Spans only: how far "no answer" must score above the best answer to be given; auto takes the best value on the
    evaluation set."""
    epochs: Annotated[float, Field(gt=0, le=10_000)] = 3.0
    """Passes over the training data, 10,000 at most."""
    global_batch_size: fields.Instances = 32
    """Examples that a step trains on, over all ranks."""
    learning_rate: LearningRate = "auto"
    """Learning rate at the end of the warm-up, its highest value; auto takes the rate that was measured for the model's
    width, one for pre-trained and one for random weights."""
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the steps during which the learning rate rises linearly; afterwards it falls linearly to 0."""
    weight_decay: fields.Weight = 0.01
    """Decoupled weight decay of AdamW. Biases and LayerNorm parameters are not decayed."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of AdamW's first and second moments."""
    eps: fields.Epsilon = 1e-6
    """Constant that AdamW adds to the root of the second moment."""
    max_grad_norm: fields.Norm = 1.0
    """Clip the global gradient norm at this value; 0 does not clip."""
    hidden_dropout_prob: Probability = 0.1
    """Dropout probability of hidden states and before the head."""
    attention_probs_dropout_prob: Probability = 0.1
    """Dropout probability of attention's probabilities."""
    evaluate_every_steps: fields.CountOrNone = 0
    """Steps between evaluations; 0 evaluates after each epoch. The best weights are kept."""
    patience: fields.CountOrNone = 0
    """Stop after this many evaluations in a row without a better score; 0 never does."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Seed that keys the head's initialisation, order of data and dropout."""
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many times to train, with seed, seed + 1, ..., 1,000 at most; mean and spread are reported."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the model; auto means bf16 on a GPU that has it, fp16 on other GPUs, and fp32 on a CPU."""
    engine: str = "auto"
    """DeepSpeed configuration: a name in ``ds_configs/`` or a file; auto means zero0 for fp32 and zero1 otherwise."""
    micro_batch_tokens: fields.PackedTokens = 8192
    """Most packed tokens that a rank takes in one micro-step."""
    activation_checkpointing: bool = False
    """Recompute the layers in the backward pass: less memory, about a third more time."""
    ops: OpsConfig = OpsConfig()


FREE_FIELDS = ("seeds", "engine", "micro_batch_tokens", "activation_checkpointing", "ops", "data", "eval_data")
"""What may change when a fine-tuning is resumed; files are compared by content, the model by its path."""
