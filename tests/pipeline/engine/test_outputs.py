"""Published tensors hold the tokens that their names say, in the requested format, in memory of their own."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import DType, OutputConfig
from retinad.pipeline.engine.host_copy import fetch
from retinad.pipeline.engine.outputs import HeadInputs, OutputHead, OutputHeads, StepTensors
from retinad.pipeline.engine.token_outputs import TokenHead
from retinad.pipeline.engine.token_shape import TokenShape
from retinad.pipeline.frames import Numbers, OutputKind, OutputTensor, TokenGroup
from retinad.pipeline.model.network import LayerOutput

from .output_rig import MeanHead, across

SHAPE = TokenShape(registers=4, grid=(5, 7), channels=6)
ALL = tuple(TokenGroup)
LAYERS = (1, 3)


def layer_outputs(frames: int = 2, seed: int = 0) -> tuple[LayerOutput, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, frames, SHAPE.tokens, SHAPE.channels)
    values = [torch.randn(shape, generator=generator) for _ in LAYERS]
    return tuple(LayerOutput(layer, *pair) for layer, pair in zip(LAYERS, values, strict=True))


def token_heads(config: OutputConfig) -> list[OutputHead]:
    config = replace(config, layers=LAYERS)
    return [TokenHead(layer, config) for layer in LAYERS]


def published(given: Sequence[LayerOutput], heads: Sequence[OutputHead]) -> StepTensors:
    """What the heads publish; the tokens of a layer are overwritten once the next one is asked for."""

    def layers() -> Iterator[LayerOutput]:
        for layer in given:
            valid = LayerOutput(layer.layer, layer.frame.clone(), across(layer).clone())
            yield valid
            valid.frame.fill_(-1)
            across(valid).fill_(-1)

    every = OutputHeads(heads)
    wanted = (frozenset((OutputKind.FEATURES,)),) * len(given[0].frame)
    return every.unpack(fetch(every.gather(layers(), SHAPE, wanted), None).wait(), SHAPE, wanted)


def tokens_of(given: Sequence[LayerOutput], config: OutputConfig) -> StepTensors:
    return published(given, token_heads(config))


def by_name(tensors: tuple[OutputTensor, ...]) -> dict[str, OutputTensor]:
    return {tensor.name: tensor for tensor in tensors}


def joined(output: LayerOutput, frame: int) -> Numbers:
    numbers: Numbers = torch.cat(output.parts, dim=-1)[frame].numpy()
    return numbers


def test_groups_are_the_tokens_that_their_names_say() -> None:
    given = layer_outputs()
    results = tokens_of(given, OutputConfig(tokens=ALL, dtype="float32", pool=4))
    for frame, tensors in enumerate(results.tensors):
        found = by_name(tensors)
        assert list(found) == [f"layer{layer}/{group}" for layer in (1, 3) for group in ALL]
        for output in given:
            tokens, name = joined(output, frame), f"layer{output.layer}"
            np.testing.assert_array_equal(found[f"{name}/camera"].data, tokens[:1])
            np.testing.assert_array_equal(found[f"{name}/registers"].data, tokens[1:5])
            np.testing.assert_array_equal(found[f"{name}/scale"].data, tokens[5:6])
            np.testing.assert_array_equal(found[f"{name}/patch"].data, tokens[6:].reshape(5, 7, 12))


def test_pooling_averages_what_is_left_at_the_edges() -> None:
    given = layer_outputs()
    results = tokens_of(given, OutputConfig(tokens=(TokenGroup.POOLED,), dtype="float32", pool=4))
    patches = joined(given[0], 1)[6:].reshape(5, 7, 12)
    pooled = results.tensors[1][0].data
    assert pooled.shape == (2, 2, 12)
    for row, column in np.ndindex(2, 2):
        mean = patches[4 * row : 4 * row + 4, 4 * column : 4 * column + 4].mean((0, 1))
        np.testing.assert_allclose(pooled[row, column], mean, atol=1e-6)


def test_bfloat16_travels_as_its_bits() -> None:
    given = layer_outputs(1)
    results = tokens_of(given, OutputConfig(tokens=(TokenGroup.CAMERA,), dtype="bfloat16"))
    tensor = results.tensors[0][0]
    assert tensor.output.dtype == "bfloat16"
    assert tensor.data.dtype == np.uint16
    expected = torch.cat(given[0].parts, dim=-1)[0, :1].to(torch.bfloat16)
    assert torch.equal(torch.from_numpy(tensor.data.copy()).view(torch.bfloat16), expected)


def test_float16_is_rounded_and_overflows_to_infinity() -> None:
    given = layer_outputs(1)
    across(given[1])[0, 0, 0] = 1e6
    results = tokens_of(given, OutputConfig(tokens=(TokenGroup.CAMERA,), dtype="float16"))
    camera = by_name(results.tensors[0])["layer3/camera"].data
    assert camera.dtype == np.float16
    assert np.isinf(camera[0, SHAPE.channels])
    assert results.finite == (True,)  # the model's own number was finite


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_seen_in_its_frame_only(dtype: DType, bad: float) -> None:
    given = layer_outputs(3)
    across(given[1])[1, -1, -1] = bad
    results = tokens_of(given, OutputConfig(tokens=(TokenGroup.CAMERA,), dtype=dtype))
    assert results.finite == (True, False, True)


def test_arrays_are_contiguous_and_no_step_writes_to_anothers() -> None:
    config = OutputConfig(tokens=ALL)
    first = tokens_of(layer_outputs(), config)
    copies = [tensor.data.copy() for tensors in first.tensors for tensor in tensors]
    second = tokens_of(layer_outputs(seed=1), config)
    arrays = [tensor.data for tensors in first.tensors for tensor in tensors]
    assert all(array.flags.c_contiguous for array in arrays)
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))
    assert not any(np.shares_memory(arrays[0], tensor.data) for tensor in second.tensors[0])
    assert not np.shares_memory(arrays[0], arrays[1])


def test_a_head_of_several_layers_runs_beside_the_tokens_though_their_memory_is_written_again() -> None:
    given = layer_outputs(3)
    config = OutputConfig(tokens=(TokenGroup.CAMERA,), dtype="float16")
    results = published(given, [*token_heads(config), MeanHead(LAYERS)])
    for frame, tensors in enumerate(results.tensors):
        found = by_name(tensors)
        assert list(found) == ["layer1/camera", "layer3/camera", "mean/tokens", "mean/count"]
        expected = np.stack([across(layer)[frame].mean(0).numpy() for layer in given])
        np.testing.assert_allclose(found["mean/tokens"].data, expected, rtol=0, atol=1e-6)
        assert found["mean/count"].data == [SHAPE.tokens]
        assert [tensor.output.dtype for tensor in tensors] == ["float16", "float16", "float32", "float32"]
    assert results.finite == (True, True, True)


def test_only_the_deepest_layer_is_checked_since_numbers_spread_to_it() -> None:
    given = layer_outputs(3)
    across(given[0])[0, 0, 0] = float("nan")
    across(given[1])[2, 0, 0] = float("inf")
    heads = token_heads(OutputConfig(tokens=(TokenGroup.CAMERA,)))
    assert published(given, heads).finite == (True, True, False)


@pytest.mark.parametrize("wanting", [(0,), (1, 2), (0, 2), ()])
def test_a_head_runs_for_the_frames_that_want_it(wanting: tuple[int, ...]) -> None:
    given = layer_outputs(3)
    ran: list[int] = []

    class Other(MeanHead):
        @property
        def kind(self) -> OutputKind:
            return OutputKind.DEPTH

        def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> None:
            ran.append(len(targets[0]))
            super().gather(inputs, targets)

    heads = OutputHeads([*token_heads(OutputConfig(tokens=(TokenGroup.CAMERA,))), Other(LAYERS)])
    both, features = frozenset((OutputKind.FEATURES, OutputKind.DEPTH)), frozenset((OutputKind.FEATURES,))
    wanted = tuple(both if frame in wanting else features for frame in range(3))
    results = heads.unpack(fetch(heads.gather(given, SHAPE, wanted), None).wait(), SHAPE, wanted)
    assert ran == ([len(wanting)] if wanting else [])
    for frame, tensors in enumerate(results.tensors):
        found = by_name(tensors)
        assert ("mean/tokens" in found) == (frame in wanting)
        if frame in wanting:
            expected = np.stack([across(layer)[frame].mean(0).numpy() for layer in given])
            np.testing.assert_allclose(found["mean/tokens"].data, expected, rtol=0, atol=1e-6)
