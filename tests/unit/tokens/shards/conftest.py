import pytest

from megabert.tokens.shards.format import ShardMetadata


@pytest.fixture
def metadata() -> ShardMetadata:
    return ShardMetadata(
        objective="nsp",
        pairing="balanced",
        masking="static",
        mask_unit="token",
        max_seq_length=128,
        max_predictions_per_seq=20,
        seed=7,
        tokenizer_sha256="a" * 64,
        special_ids={"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        vocab_size=65_536,
        masked_lm_prob=0.15,
    )
