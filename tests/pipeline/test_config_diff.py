"""Two configs are compared field by field, nested ones too, and values are shown as the config file writes lists."""

from dataclasses import replace

from retinad.pipeline.config import ModelConfig, OutputConfig
from retinad.pipeline.config_diff import Difference, differences
from retinad.pipeline.frames import TokenGroup


def test_each_field_that_differs_has_its_path_and_both_values() -> None:
    before = ModelConfig()
    output = OutputConfig(layers=(3,), tokens=(TokenGroup.CAMERA, TokenGroup.POOLED), dtype="float32")
    after = replace(before, output=output)
    assert list(differences(before, after, "model")) == [
        Difference("model.output.layers", (4, 11, 17, 23), (3,)),
        Difference("model.output.tokens", before.output.tokens, output.tokens),
        Difference("model.output.dtype", "float16", "float32"),
    ]
    assert [str(difference) for difference in differences(before, after)] == [
        "output.layers was [4, 11, 17, 23], is [3]",
        "output.tokens was [camera, patch], is [camera, pooled]",
        "output.dtype was float16, is float32",
    ]


def test_equal_values_have_no_differences() -> None:
    assert list(differences(ModelConfig(), ModelConfig())) == []
