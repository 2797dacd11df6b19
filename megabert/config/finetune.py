"""The configuration of a fine-tuning: what ``megabert finetune`` takes as flags."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from megabert.config.model import Probability
from megabert.config.run import OpsConfig, Precision
from megabert.config.strict import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FinetuneConfig:
    """Data, columns, schedule and engine of a fine-tuning."""

    model: str
    """Weights to start from: a Hugging Face folder or a run folder."""
    checkpoint: str = "last"
    """Of a run folder: last, best or a step."""
    random_weights: bool = False
    """Take shape and tokenizer from the model, and draw all weights anew by seed: what pre-training is worth."""
    data: str
    """Training file, or a folder with train.* and dev.* (or validation.*, valid.*, test.*)."""
    eval_data: str | None = None
    """Evaluation file; default: the one beside the training file, or a held-out share of it."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of a lone training file that is set aside for evaluation, chosen by seed 0."""
    text_column: str | None = None
    """Column of the text (of the tokens, for tagging); default: the task's."""
    pair_column: str | None = None
    """Column of the second text; default: the task's."""
    label_column: str | None = None
    """Column of the label; default: the task's."""
    language: Literal["en", "ko"] = "en"
    """Of answers: ko scores F1 over characters, as KorQuAD does, en over words, as SQuAD does."""
    max_train_examples: NonNegativeInt = 0
    """Train on a fixed random subset of this size; 0 takes all."""
    max_eval_examples: NonNegativeInt = 0
    """Evaluate on a fixed random subset of this size; 0 takes all."""
    max_seq_length: Annotated[int, Field(ge=8)] | Literal["auto"] = "auto"
    """Longest sequence in tokens; auto: 384 for spans, else 128, or what the model has positions for."""
    doc_stride: PositiveInt = 128
    """Spans: tokens from one window of a long context to the next."""
    max_query_length: PositiveInt = 64
    """Spans: questions are cut to this many tokens."""
    max_answer_length: PositiveInt = 30
    """Spans: longest answer in tokens."""
    n_best: PositiveInt = 20
    """Spans: answers kept for each question."""
    null_threshold: float | Literal["auto"] = "auto"
    """Spans without answer: how far "no answer" must score above the best answer; auto: best on the evaluation set."""
    epochs: PositiveFloat = 3.0
    """Passes over the training data."""
    global_batch_size: PositiveInt = 32
    """Examples a step over all ranks."""
    learning_rate: PositiveFloat = 3e-5
    """Peak learning rate."""
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the steps with linearly rising learning rate; then it falls linearly."""
    weight_decay: NonNegativeFloat = 0.01
    """Of AdamW; biases and LayerNorm parameters take none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    eps: PositiveFloat = 1e-6
    """AdamW's epsilon."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Clip the global gradient norm at this value; 0 does not clip."""
    hidden_dropout_prob: Probability = 0.1
    """Dropout of hidden states and before the head."""
    attention_probs_dropout_prob: Probability = 0.1
    """Dropout of attention probabilities."""
    evaluate_every_steps: NonNegativeInt = 0
    """Steps between evaluations; 0: after each epoch. The best weights are kept."""
    patience: NonNegativeInt = 0
    """Stop after this many evaluations in a row without a better score; 0 never does."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Keys the head's initialisation, order of data and dropout."""
    seeds: PositiveInt = 1
    """Train this many times, with seed, seed + 1, ...; report mean and spread."""
    precision: Precision = "auto"
    """Arithmetic of the model; auto: bf16 on a GPU that has it, else fp16 on a GPU, fp32 on a CPU."""
    engine: str = "auto"
    """A DeepSpeed configuration: a name of ``ds_configs/`` or a file; auto: zero0 for fp32, else zero1."""
    micro_batch_tokens: PositiveInt = 8192
    """Most packed tokens a rank takes in one micro-step."""
    activation_checkpointing: bool = False
    """Recompute layers in the backward pass."""
    ops: OpsConfig = OpsConfig()


FREE_FIELDS = ("seeds", "engine", "micro_batch_tokens", "activation_checkpointing", "ops", "data", "eval_data")
"""What may change when a fine-tuning is resumed; files are compared by content, the model by its path."""
