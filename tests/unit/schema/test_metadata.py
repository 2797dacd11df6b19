import dataclasses

import pyarrow as pa
import pytest

from megabert.errors import DataError
from megabert.schema import ShardMetadata, instance_schema


def test_metadata_survives_arrow(metadata):
    assert ShardMetadata.from_arrow(instance_schema(metadata)) == metadata


@pytest.mark.parametrize(("size", "expected"), [(65_536, pa.uint16()), (65_537, pa.uint32())])
def test_ids_take_the_narrowest_type(metadata, size, expected):
    schema = instance_schema(dataclasses.replace(metadata, vocab_size=size))
    assert schema.field("input_ids").type.value_type == expected
    assert schema.field("masked_lm_ids").type.value_type == expected


def test_foreign_schema_is_refused():
    with pytest.raises(DataError, match="not an instance shard"):
        ShardMetadata.from_arrow(pa.schema([("text", pa.string())]), "x.arrow")


def test_other_columns_are_refused(metadata):
    schema = instance_schema(metadata).remove(1)
    with pytest.raises(DataError, match="columns"):
        ShardMetadata.from_arrow(schema, "x.arrow")


def test_other_version_is_refused(metadata):
    with pytest.raises(DataError, match="format_version=99"):
        ShardMetadata.from_dict({**metadata.to_dict(), "format_version": 99})


def test_unknown_objective_is_refused(metadata):
    with pytest.raises(DataError, match="allowed: nsp, sop, none"):
        dataclasses.replace(metadata, objective="clm")


def test_missing_mask_id_is_refused(metadata):
    with pytest.raises(DataError, match="lacks mask"):
        dataclasses.replace(metadata, special_ids={"pad": 0, "unk": 1, "cls": 2, "sep": 3})
