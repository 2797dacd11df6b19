"""Largest differences between our models and transformers' with the same weights, family by family, head by head."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from support.exported_models import write_huggingface
from support.tiny_models import write_tokenizer
from torch import Tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2PreTrainedModel

from megabert.data.batch import MicroBatch
from megabert.downstream.export.config_json import ARCHITECTURES
from megabert.downstream.export.huggingface import read_huggingface
from megabert.downstream.export.model_card import ModelCard
from megabert.models.build import build_model
from megabert.models.convert import load_parameters, parameter_shapes
from megabert.models.electra import ElectraForPreTraining
from megabert.models.embedding_sharing import whole_tables
from megabert.models.key_maps import VOCABULARY_ROWS
from megabert.settings.config.families import Objective
from megabert.settings.config.model import ModelConfig

VOCABULARY = 70
LENGTHS = (40, 1, 17, 40, 23)
RELATIVE = ("encoder.rel_embeddings.weight", "encoder.relative.weight")
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A family with a head, and how it is configured."""

    head: str
    family: str
    objective: Objective
    options: dict[str, object] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(**{"family": self.family, "max_position_embeddings": 64, **SIZES, **self.options})

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Classes and subfolders: a discriminator has its generator in one."""
        masked_lm = ARCHITECTURES[self.family]["none"]
        generator = [(masked_lm, "generator")] if "generator_size" in self.options else []
        return [(self.head, ""), *generator]


class DebertaDiscriminator(DebertaV2PreTrainedModel):
    """transformers' encoder with DeBERTa 3's head, which it lacks: LMMaskPredictionHead in microsoft/DeBERTa."""

    def __init__(self, config: transformers.DebertaV2Config) -> None:
        super().__init__(config)
        self.deberta = transformers.DebertaV2Model(config)
        self.mask_predictions = torch.nn.ModuleDict(
            {
                "dense": torch.nn.Linear(config.hidden_size, config.hidden_size),
                "LayerNorm": torch.nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
                "classifier": torch.nn.Linear(config.hidden_size, 1),
            }
        )
        self.post_init()

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        head, output = self.mask_predictions, self.deberta(**inputs)
        hidden = output.last_hidden_state
        hidden = torch.nn.functional.gelu(head["dense"](head["LayerNorm"](hidden[:, :1] + hidden)))
        return SimpleNamespace(hidden_states=output.hidden_states, logits=head["classifier"](hidden)[..., 0])


def class_of(head: str) -> type[torch.nn.Module]:
    """Return the class of transformers, or its stand-in."""
    return DebertaDiscriminator if head == "DebertaV2Model" else getattr(transformers, head)


DISCRIMINATORS = (transformers.ElectraForPreTraining, DebertaDiscriminator)
NOT_THEIRS = {"generator.cls.position_embeddings.weight"}
"""Parameters that transformers' classes do not have: absolute positions of the enhanced mask decoder."""

CASES = [
    Case(head="BertForPreTraining", family="bert", objective="nsp"),
    Case(head="BertForMaskedLM", family="bert", objective="none", options={"hidden_act": "gelu_new"}),
    Case(head="RobertaForMaskedLM", family="roberta", objective="none"),
    Case(head="AlbertForPreTraining", family="albert", objective="sop", options={"embedding_size": 24}),
    Case(head="AlbertForMaskedLM", family="albert", objective="none", options={"embedding_size": 32}),
    Case(
        head="AlbertForPreTraining",
        family="albert",
        objective="sop",
        options={"embedding_size": 16, "num_hidden_groups": 2, "hidden_act": "gelu"},
    ),
    Case(
        head="ElectraForPreTraining",
        family="electra",
        objective="none",
        options={"embedding_size": 24, "generator_size": 0.5},
    ),
    Case(head="ElectraForMaskedLM", family="electra", objective="none", options={"embedding_size": 32}),
    *(
        Case(head="DebertaForMaskedLM", family="deberta", objective="none", options=options)
        for options in (
            {},
            {"pos_att_type": ("c2p",), "max_relative_positions": 8},
            {"pos_att_type": ("p2c",)},
            {"position_biased_input": True, "type_vocab_size": 2},
        )
    ),
    *(
        Case(head="DebertaV2ForMaskedLM", family="deberta-v2", objective="none", options=options)
        for options in (
            {"position_buckets": 8},
            {"position_buckets": 8, "pos_att_type": ("c2p",), "max_relative_positions": 20},
            {"position_buckets": 8, "pos_att_type": ("p2c",), "share_att_key": False},
            {"position_buckets": None, "share_att_key": False, "norm_rel_ebd": "none"},
            {"position_buckets": 8, "conv_kernel_size": 3, "conv_act": "gelu"},
            {"position_buckets": 8, "conv_kernel_size": 5},
        )
    ),
    *(
        Case(head="DebertaV2Model", family="deberta-v3", objective="none", options={"position_buckets": 8, **options})
        for options in (
            {"generator_size": 1.0, "generator_layers": 2, "embedding_size": 32},
            {"generator_size": 0.5, "generator_layers": 3, "embedding_size": 32, "embedding_sharing": "shared"},
            {"generator_size": 0.5, "embedding_size": 24, "embedding_sharing": "separate"},
        )
    ),
    *(
        Case(head="ModernBertForMaskedLM", family="modernbert", objective="none", options=options)
        for options in (
            {"local_attention": 8},
            {"local_attention": 2, "global_attn_every_n_layers": 2, "hidden_act": "gelu_new"},
            {"local_attention": 78, "global_rope_theta": 50.0, "local_rope_theta": 20.0},
            {"local_attention": 34, "global_attn_every_n_layers": 4, "num_attention_heads": 1},
        )
    ),
]


def make_tokenizer(folder: Path, *, pad_id: int) -> Path:
    """Write a WordPiece tokenizer of a given size, with the padding piece at a chosen id."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special.insert(pad_id, "[PAD]")
    letters = [chr(ord("a") + n) for n in range(26)]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *"0123456789", ",", ".", "?"]
    return write_tokenizer(folder, pieces[:VOCABULARY])


def make_batch(config: ModelConfig, *, seed: int = 5, lengths: tuple[int, ...] = LENGTHS) -> MicroBatch:
    """Return a packed batch of random tokens, no padding among them."""
    rng = np.random.default_rng(seed)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    total = int(bounds[-1])
    masked = np.sort(rng.choice(total, total // 6, replace=False))
    positions = np.concatenate([np.arange(n) for n in lengths])
    segments = np.concatenate([np.arange(n) >= n // 2 for n in lengths]) * (config.type_vocab_size > 1)
    return MicroBatch(
        input_ids_T=torch.from_numpy(rng.integers(5, config.vocab_size, total)),
        position_ids_T=torch.from_numpy(positions),
        segment_ids_T=torch.from_numpy(segments.astype(np.int64)),
        cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
        masked_positions_M=torch.from_numpy(masked),
        masked_ids_M=torch.from_numpy(rng.integers(5, config.vocab_size, len(masked))),
        next_sentence_label_B=torch.zeros(len(lengths), dtype=torch.int64),
        instance_seeds_B=torch.arange(len(lengths), dtype=torch.int32),
        max_seqlen=max(lengths),
        num_tokens=total,
        num_masked=len(masked),
        num_instances=len(lengths),
    )


def run_theirs(model: torch.nn.Module, batch: MicroBatch) -> dict[str, Tensor]:
    """Run the padded batch that a packed one stands for; results in our order and names."""
    rows = [slice(a, b) for a, b in pairwise(batch.cu_seqlens.tolist())]

    def pad(values: Tensor, filling: int = 0) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([values[row] for row in rows], batch_first=True, padding_value=filling)

    is_real = pad(torch.ones_like(batch.input_ids_T)).bool()
    filling = model.config.pad_token_id or 0
    inputs = {"input_ids": pad(batch.input_ids_T, filling), "attention_mask": is_real.long()}
    with torch.no_grad():
        output = model(**inputs, token_type_ids=pad(batch.segment_ids_T), output_hidden_states=True)
    masked = batch.masked_positions_M
    found = {"hidden states": output.hidden_states[-1][is_real]}
    if isinstance(model, DISCRIMINATORS):
        return {**found, "discriminator logits": output.logits[is_real]}
    logits = output.get("prediction_logits", output.get("logits"))
    found["masked-LM logits"] = logits[is_real][masked]
    sentence = output.get("seq_relationship_logits", output.get("sop_logits"))
    if sentence is not None:
        found["sentence logits"] = sentence
    return found


def run_ours(model: torch.nn.Module, batch: MicroBatch) -> dict[str, Tensor | None]:
    """Run our model; what it does not compute is None."""
    model.eval()
    with torch.no_grad():
        if isinstance(model, ElectraForPreTraining):  # of the tokens as they are, none replaced
            hidden_TD, _ = model.bert(batch)
            logits_T = model.discriminator_predictions(hidden_TD, batch)
            return {"hidden states": hidden_TD, "discriminator logits": logits_T}
        output = model(batch, with_logits=True, with_hidden=True)
        logits_MV = output.mlm_logits_MV
        if model.config.enhanced_mask_decoder:  # transformers' classes fill masks without it
            logits_MV = model.cls.predictions(output.hidden_TD[batch.masked_positions_M])[:, : model.config.vocab_size]
    return {
        "hidden states": output.hidden_TD,
        "masked-LM logits": logits_MV,
        "sentence logits": output.nsp_logits_B2,
        "pooled": output.pooled_BD,
    }


def differences(ours: dict[str, Tensor | None], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest absolute difference of each result; a result that ours lacks is an error."""
    return {name: float((ours[name] - value).abs().max()) for name, value in theirs.items()}


def import_differences(case: Case, folder: Path) -> dict[str, float]:
    """Random weights of transformers, saved there and read here."""
    tokenizer = make_tokenizer(folder / "tokenizer", pad_id=1)
    model = build_model(case.config, objective=case.objective)
    write(model, folder / "config", tokenizer)  # for the config.json alone
    theirs = [
        class_of(head)(transformers.AutoConfig.from_pretrained(folder / "config" / part)).eval()
        for head, part in case.parts
    ]
    for their_model, (_, part) in zip(theirs, case.parts, strict=True):
        randomize(their_model)
        if part:
            share_embeddings(case.config, their_model, theirs[0])
        their_model.save_pretrained(folder / "theirs" / part)
    found = read_huggingface(folder / "theirs", objective=case.objective)
    assert found.config == case.config
    assert set(found.missing_head_names) <= NOT_THEIRS
    load_parameters(model, found.state, may_lack=found.missing_head_names)
    return compare(case, model, theirs)


@torch.no_grad()
def share_embeddings(config: ModelConfig, generator: torch.nn.Module, discriminator: torch.nn.Module) -> None:
    """Give a generator the embeddings that it is trained to share."""
    to, origin = generator.base_model.embeddings, discriminator.base_model.embeddings
    if config.embedding_sharing is None:
        to.load_state_dict(origin.state_dict())
    elif config.embedding_sharing == "shared":
        to.word_embeddings.weight.copy_(origin.word_embeddings.weight)


def export_differences(case: Case, folder: Path) -> dict[str, float]:
    """Random weights of ours, written here and loaded there."""
    tokenizer = make_tokenizer(folder / "tokenizer", pad_id=1)
    model = random_model(case.config, case.objective)
    write(model, folder / "ours", tokenizer)
    theirs = []
    for head, part in case.parts:
        loaded, info = class_of(head).from_pretrained(folder / "ours" / part, output_loading_info=True)
        assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        theirs.append(loaded.eval())
    return compare(case, model, theirs)


def compare(case: Case, model: torch.nn.Module, theirs: list[torch.nn.Module]) -> dict[str, float]:
    """Return the differences of a model, and of its generator."""
    batch = make_batch(case.config)
    found = differences(run_ours(model, batch), run_theirs(theirs[0], batch))
    for generator in theirs[1:]:
        parts = differences(run_ours(model.generator, batch), run_theirs(generator, batch))
        found |= {f"generator's {name}": value for name, value in parts.items()}
    return found


def random_model(config: ModelConfig, objective: Objective) -> torch.nn.Module:
    """Return a model of ours with random weights; padding of the vocabulary is zero."""
    model = build_model(config, objective=objective)
    randomize(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(VOCABULARY_ROWS):
                parameter[VOCABULARY:] = 0
    return model


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Draw every parameter, biases included, so that hidden states are of the order of 1."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        is_gain = name.lower().endswith(("layernorm.weight", "norm.weight"))
        deviation = 1.0 if name.endswith(RELATIVE) else 0.1  # where a token stands should weigh as much as what it is
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation + is_gain)


def write(model: torch.nn.Module, folder: Path, tokenizer: Path) -> None:
    """Export a model."""
    state = whole_tables({name: parameter.detach() for name, parameter in model.named_parameters()})
    card = ModelCard(name="parity")
    write_huggingface(folder, state=state, config=model.config, tokenizer_dir=tokenizer, card=card)


def count_encoder_parameters(config: ModelConfig) -> int:
    """Return the size of encoder and pooler, as papers state it: without heads and the vocabulary's padding."""
    shapes = parameter_shapes(config)
    padding = (config.padded_vocab_size - int(config.vocab_size)) * config.embedding_width
    return sum(shape.numel() for name, shape in shapes.items() if name.startswith("bert.")) - padding
