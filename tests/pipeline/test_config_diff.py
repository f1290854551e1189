"""What differs is called as the config calls it: a person looks for the name there."""

from dataclasses import fields, replace

import pytest

from retinad.daemon.config.tables import ModelTable, StreamTable
from retinad.pipeline.config import ModelConfig, OutputConfig, RetentionConfig, StreamConfig
from retinad.pipeline.config_diff import config_key, differences
from retinad.pipeline.frames import TokenGroup


@pytest.mark.parametrize(
    "name", [field.name for field in fields(ModelConfig) if field.name not in ("output", "network")]
)
def test_the_fields_of_the_model_are_keys_of_its_table(name: str) -> None:
    assert config_key(f"model.{name}").removeprefix("model.") in ModelTable.model_fields


@pytest.mark.parametrize("part", ["output", "network"])
def test_the_fields_of_its_parts_are_too(part: str) -> None:
    for field in fields(getattr(ModelConfig(), part)):
        key = config_key(f"model.{part}.{field.name}")
        assert key.removeprefix("model.") in ModelTable.model_fields
        assert config_key(f"{part}.{field.name}") == key


@pytest.mark.parametrize(
    "name",
    [field.name for field in fields(StreamConfig) if field.name != "retention"]
    + [f"retention.{field.name}" for field in fields(RetentionConfig)],
)
def test_the_fields_of_a_stream_are_keys_of_its_table(name: str) -> None:
    assert config_key(f"stream.{name}").removeprefix("stream.") in StreamTable.model_fields


def test_values_are_shown_as_the_config_writes_lists() -> None:
    before = ModelConfig()
    output = OutputConfig(layers=(3,), tokens=(TokenGroup.CAMERA, TokenGroup.POOLED), dtype="float32")
    assert list(differences(before, replace(before, output=output), "model")) == [
        "model.layers was [4, 11, 17, 23], is [3]",
        "model.tokens was [camera, patch], is [camera, pooled]",
        "model.output_dtype was float16, is float32",
    ]
