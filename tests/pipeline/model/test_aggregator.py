"""One set of weights serves many streams of any age and size, indefinitely."""

import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import NetworkConfig, StreamConfig
from retinad.pipeline.model.aggregator import CACHED_GRIDS, Aggregator
from retinad.pipeline.model.backbones import build_patch_embed
from retinad.pipeline.model.delta_attention import KimiDeltaAttention
from retinad.pipeline.model.network import FrameNumbers

from .golden import aggregator, features, new_pool, new_state, random_images, run_step, run_stream

SMALL = NetworkConfig(channels=32, heads=2, depth=2, patch_embed="conv")
TOLERANCE = 1e-5
"""Absolute, on outputs of about 3: float32 matrix products round differently for another number of rows."""


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model() -> Aggregator:
    return aggregator(SMALL)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_streams_of_different_ages_in_one_step_equal_each_alone(model: Aggregator) -> None:
    """The reference implementation cannot do this: it slices its special tokens for a single stream."""
    settings = [StreamConfig(2, 3), StreamConfig(1, 2, keyframe_interval=2), StreamConfig(3, 2, keyframe_interval=3)]
    videos = [random_images(seed, 14, 28, 42) for seed in range(3)]
    expected = [run_stream(model, new_state(model, s, 28, 42), v) for s, v in zip(settings, videos, strict=True)]
    pool = new_pool(model)
    states = [new_state(model, s, 28, 42, pool) for s in settings]
    done = [0, 0, 0]
    for number in range(11):
        joined = [i for i in range(3) if number >= 2 * i]
        counts = [1 if done[i] else settings[i].scale_frames for i in joined]
        parts = [videos[i][done[i] : done[i] + count] for i, count in zip(joined, counts, strict=True)]
        outputs = features(run_step(model, [states[i] for i in joined], parts)).split_with_sizes(counts)
        for i, count, output in zip(joined, counts, outputs, strict=True):
            close(output, expected[i][done[i] : done[i] + count])
            done[i] += count


def test_two_interleaved_streams_of_different_sizes_equal_each_alone(model: Aggregator) -> None:
    sizes = [(28, 42), (56, 28)]
    videos = [random_images(seed, 8, *size) for seed, size in enumerate(sizes)]
    settings = StreamConfig(1, 2)
    expected = [run_stream(model, new_state(model, settings, *z), v) for z, v in zip(sizes, videos, strict=True)]
    pool = new_pool(model)
    states = [new_state(model, settings, *size, pool) for size in sizes]
    for number in range(8):
        for state, video, whole in zip(states, videos, expected, strict=True):
            output = features(run_step(model, [state], [video[number : number + 1]]))
            close(output[0], whole[number])


def test_a_stream_shifted_in_time_has_the_same_features(model: Aggregator) -> None:
    """So frame numbers may grow indefinitely; the reference breaks after `max_frame_num` frames."""
    video, settings = random_images(3, 12, 28, 42), StreamConfig(2, 3)
    near = run_stream(model, new_state(model, settings, 28, 42), video)
    far = run_stream(model, new_state(model, settings, 28, 42), video, shift=10**6)
    close(far, near)


def test_layers_after_the_last_requested_one_do_not_run(model: Aggregator) -> None:
    class FirstLayerOnly:
        def append(self, layer: int, key: Tensor, value: Tensor) -> None:
            assert layer == 0

        def attend(self, layer: int, query: Tensor) -> Tensor:
            return query

        def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
            raise AssertionError("there is no such layer")

    numbers = FrameNumbers((0,), (True,), (True,))
    outputs = model(random_images(0, 1, 28, 42), numbers, FirstLayerOnly(), (0,))
    assert [output.layer for output in outputs] == [0]


def test_cached_tables_per_image_size_are_bounded() -> None:
    small = aggregator(NetworkConfig(channels=32, heads=2, depth=1, patch_embed="conv"))
    for columns in range(1, CACHED_GRIDS + 4):
        state = new_state(small, StreamConfig(1, 1), 14, 14 * columns)
        run_step(small, [state], [random_images(0, 1, 14, 14 * columns)])
    assert len(small._tables) == CACHED_GRIDS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_to_float32(dtype: torch.dtype, model: Aggregator) -> None:
    """Only linear layers, convolutions and attention are in `dtype`; the residual stream stays float32."""
    with torch.device("meta"):
        half = Aggregator(SMALL, dtype)
    wanted = half.state_dict()
    half.load_state_dict({n: v.to(wanted[n].dtype) for n, v in model.state_dict().items()}, assign=True)
    video, settings = random_images(5, 6, 28, 42), StreamConfig(2, 2)
    exact = run_stream(model, new_state(model, settings, 28, 42), video)
    rough = run_stream(half, new_state(half, settings, 28, 42, new_pool(half, dtype)), video)
    assert rough.dtype is torch.float32
    # bfloat16 has 8 bits: each of 4 blocks rounds its branches by up to 2^-9, twice.
    assert (rough - exact).abs().max() / exact.abs().max() <= 1e-2


def test_an_impossible_network_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        Aggregator(NetworkConfig(channels=30, heads=4, patch_embed="conv"), torch.float32)
    with pytest.raises(ValueError, match="requires channels 384, got 1024"):
        build_patch_embed(NetworkConfig(channels=1024, patch_embed="dinov2_vits14_reg"), torch.float32)


def test_norms_have_the_references_eps() -> None:
    """A wrong eps of the query and key norms moves outputs by 1.3e-6, less than the golden files' tolerance."""
    with torch.device("meta"):
        whole = Aggregator(NetworkConfig(384, 6, 1, patch_embed="dinov2_vits14_reg"), torch.float32)
    eps = {name: norm.eps for name, norm in whole.named_modules() if isinstance(norm, torch.nn.LayerNorm)}
    assert {value for name, value in eps.items() if name.startswith("patch_embed.")} == {1e-6}
    assert {value for name, value in eps.items() if not name.startswith("patch_embed.")} == {1e-5}
    assert sum(name.endswith(("q_norm", "k_norm")) for name in eps) == 4
