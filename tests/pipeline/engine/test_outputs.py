"""Published tensors hold the tokens that their names say, in the format that was asked for, in memory of their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from retinad.pipeline.config import OutputConfig
from retinad.pipeline.engine.outputs import PackedStep, TokenShape, fetch, gather, pack
from retinad.pipeline.frames import FeatureTensor, TokenGroup
from retinad.pipeline.model.network import LayerOutput

SHAPE = TokenShape(registers=4, grid=(5, 7), channels=6)
ALL = tuple(TokenGroup)


def outputs(frames: int = 2, seed: int = 0) -> tuple[LayerOutput, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, frames, SHAPE.tokens, SHAPE.channels)
    values = [torch.randn(shape, generator=generator) for _ in (1, 3)]
    return tuple(LayerOutput(layer, *pair) for layer, pair in zip((1, 3), values, strict=True))


def packed_of(given: tuple[LayerOutput, ...], config: OutputConfig) -> PackedStep:
    config = replace(config, layers=(1, 3))
    return pack(fetch(gather(given, SHAPE, config), None).wait(), SHAPE, config)


def by_name(tensors: tuple[FeatureTensor, ...]) -> dict[str, FeatureTensor]:
    return {tensor.name: tensor for tensor in tensors}


def joined(output: LayerOutput, frame: int) -> np.ndarray:
    return torch.cat((output.frame, output.across), dim=-1)[frame].numpy()


def test_groups_are_the_tokens_that_their_names_say() -> None:
    given = outputs()
    packed = packed_of(given, OutputConfig(tokens=ALL, dtype="float32", pool=4))
    for frame, tensors in enumerate(packed.tensors):
        found = by_name(tensors)
        assert list(found) == [f"layer{layer}/{group}" for layer in (1, 3) for group in ALL]
        for output in given:
            tokens, name = joined(output, frame), f"layer{output.layer}"
            np.testing.assert_array_equal(found[f"{name}/camera"].data, tokens[:1])
            np.testing.assert_array_equal(found[f"{name}/registers"].data, tokens[1:5])
            np.testing.assert_array_equal(found[f"{name}/scale"].data, tokens[5:6])
            np.testing.assert_array_equal(found[f"{name}/patch"].data, tokens[6:].reshape(5, 7, 12))


def test_pooling_averages_what_is_left_at_the_edges() -> None:
    given = outputs()
    packed = packed_of(given, OutputConfig(tokens=(TokenGroup.POOLED,), dtype="float32", pool=4))
    patches = joined(given[0], 1)[6:].reshape(5, 7, 12)
    pooled = packed.tensors[1][0].data
    assert pooled.shape == (2, 2, 12)
    for row, column in np.ndindex(2, 2):
        mean = patches[4 * row : 4 * row + 4, 4 * column : 4 * column + 4].mean((0, 1))
        np.testing.assert_allclose(pooled[row, column], mean, atol=1e-6)


def test_bfloat16_travels_as_its_bits() -> None:
    given = outputs(1)
    packed = packed_of(given, OutputConfig(tokens=(TokenGroup.CAMERA,), dtype="bfloat16"))
    tensor = packed.tensors[0][0]
    assert tensor.is_bfloat16
    assert tensor.data.dtype == np.uint16
    expected = torch.cat((given[0].frame, given[0].across), dim=-1)[0, :1].to(torch.bfloat16)
    assert torch.equal(torch.from_numpy(tensor.data.copy()).view(torch.bfloat16), expected)


def test_float16_is_rounded_and_overflows_to_infinity() -> None:
    given = outputs(1)
    given[1].across[0, 0, 0] = 1e6
    packed = packed_of(given, OutputConfig(tokens=(TokenGroup.CAMERA,), dtype="float16"))
    camera = by_name(packed.tensors[0])["layer3/camera"].data
    assert camera.dtype == np.float16
    assert np.isinf(camera[0, SHAPE.channels])
    assert packed.finite == (True,)  # the model's own number was finite


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_seen_in_its_frame_only(dtype: str, bad: float) -> None:
    given = outputs(3)
    given[1].across[1, -1, -1] = bad
    packed = packed_of(given, OutputConfig(tokens=(TokenGroup.CAMERA,), dtype=dtype))  # type: ignore[arg-type]
    assert packed.finite == (True, False, True)


def test_arrays_are_contiguous_and_no_step_writes_to_anothers() -> None:
    config = OutputConfig(tokens=ALL)
    first = packed_of(outputs(), config)
    copies = [tensor.data.copy() for tensors in first.tensors for tensor in tensors]
    second = packed_of(outputs(seed=1), config)
    arrays = [tensor.data for tensors in first.tensors for tensor in tensors]
    assert all(array.flags.c_contiguous for array in arrays)
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))
    assert not any(np.shares_memory(arrays[0], tensor.data) for tensor in second.tensors[0])
    assert not np.shares_memory(arrays[0], arrays[1])
