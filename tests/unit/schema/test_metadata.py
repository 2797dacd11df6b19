import dataclasses

import pyarrow as pa
import pytest

from megabert.errors import DataError
from megabert.schema import ShardMetadata, instance_schema

METADATA = ShardMetadata(
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
)


def test_metadata_survives_arrow():
    assert ShardMetadata.from_arrow(instance_schema(METADATA)) == METADATA


@pytest.mark.parametrize(("size", "expected"), [(65_536, pa.uint16()), (65_537, pa.uint32())])
def test_ids_take_the_narrowest_type(size, expected):
    schema = instance_schema(dataclasses.replace(METADATA, vocab_size=size))
    assert schema.field("input_ids").type.value_type == expected
    assert schema.field("masked_lm_ids").type.value_type == expected


def test_foreign_schema_is_refused():
    with pytest.raises(DataError, match="not an instance shard"):
        ShardMetadata.from_arrow(pa.schema([("text", pa.string())]), "x.arrow")


def test_other_columns_are_refused():
    schema = instance_schema(METADATA).remove(1)
    with pytest.raises(DataError, match="columns"):
        ShardMetadata.from_arrow(schema, "x.arrow")


def test_other_version_is_refused():
    with pytest.raises(DataError, match="format_version=99"):
        ShardMetadata.from_dict({**METADATA.to_dict(), "format_version": 99})


def test_unknown_objective_is_refused():
    with pytest.raises(DataError, match="allowed: nsp, sop, none"):
        dataclasses.replace(METADATA, objective="clm")


def test_missing_mask_id_is_refused():
    with pytest.raises(DataError, match="lacks mask"):
        dataclasses.replace(METADATA, special_ids={"pad": 0, "unk": 1, "cls": 2, "sep": 3})
