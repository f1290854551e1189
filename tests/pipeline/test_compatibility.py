"""Incompatible settings are reported with their field, the reason and a remedy; compatible ones are not reported."""

import importlib.util
from dataclasses import replace

import pytest

from retinad.pipeline.compatibility import capability_conflicts, find_conflicts
from retinad.pipeline.config import ModelConfig, NetworkConfig, OutputConfig

ON_CPU = ModelConfig(attention="auto", device="cpu", dtype="float32")
ON_GPU = replace(ON_CPU, device="cuda:0", dtype="bfloat16")
DELTA = NetworkConfig(channels=128, heads=2, depth=2, patch_embed="conv", mixers=("kda",))
EMBEDDING = NetworkConfig(depth=0)
FIRST = OutputConfig(layers=(0,))


@pytest.fixture(autouse=True)
def _all_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.parametrize(
    "config",
    [
        ON_CPU,
        replace(ON_CPU, attention="dense", execution="plain"),
        replace(ON_CPU, network=DELTA, output=FIRST, dtype="bfloat16", execution="fused", memory_dtype="float8_e4m3fn"),
        replace(ON_CPU, network=EMBEDDING, output=FIRST),
        ON_GPU,
        replace(ON_GPU, attention="flashinfer"),
        replace(ON_GPU, attention="triton", execution="captured", memory_dtype="float8_e4m3fn"),
        replace(ON_GPU, execution="fused"),
        replace(ON_GPU, dtype="float32"),
    ],
)
def test_a_config_that_can_run_has_no_conflicts(config: ModelConfig) -> None:
    assert find_conflicts(config) == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (replace(ON_CPU, attention="triton"), "triton runs on CUDA, not on cpu: set attention = 'dense'"),
        (replace(ON_CPU, attention="flashinfer"), "flashinfer runs on CUDA, not on cpu: set attention = 'dense'"),
        (
            replace(ON_CPU, execution="captured"),
            "execution 'captured' is not possible: fused kernels need attention = 'triton', and triton runs on CUDA, "
            "not on cpu: set execution = 'auto'",
        ),
        (
            replace(ON_CPU, network=DELTA, output=FIRST, dtype="bfloat16", execution="captured"),
            "execution 'captured' is not possible: CUDA graphs need a CUDA device, not cpu: set execution = 'auto'",
        ),
        (
            replace(ON_CPU, network=EMBEDDING, output=FIRST, execution="fused"),
            "execution 'fused' is not possible: a network of depth 0 has nothing to fuse: set execution = 'auto'",
        ),
        (
            replace(ON_GPU, attention="dense", execution="fused"),
            "execution 'fused' is not possible: fused kernels need attention = 'triton': set execution = 'auto'",
        ),
        (
            replace(ON_GPU, execution="plain", memory_dtype="float8_e4m3fn"),
            "memory_dtype 'float8_e4m3fn' needs fused execution: execution is plain: set memory_dtype = 'auto'",
        ),
        (
            replace(ON_GPU, attention="triton", network=replace(NetworkConfig(), heads=32)),
            "triton supports heads of 64 or 128 channels, not 32: set attention = 'dense'",
        ),
        (
            replace(ON_GPU, attention="flashinfer", dtype="float32"),
            "flashinfer supports float16 and bfloat16, not float32: set attention = 'dense'",
        ),
    ],
)
def test_a_conflict_has_its_reason_and_a_way_out(config: ModelConfig, expected: str) -> None:
    (fault,) = find_conflicts(config)
    assert str(fault) == expected
    assert f"set {fault.field} = " in expected


def test_all_conflicts_are_reported_at_once() -> None:
    config = replace(ON_CPU, attention="flashinfer", execution="fused", memory_dtype="float8_e4m3fn")
    assert [fault.field for fault in find_conflicts(config)] == ["attention", "execution", "memory_dtype"]


def test_kernels_whose_package_is_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (fault,) = find_conflicts(replace(ON_GPU, attention="triton"))
    assert find_conflicts(replace(ON_GPU, attention="triton"), elsewhere=True) == ()
    assert fault.reason == "triton is not installed (it comes with retinad[gpu])"


def test_float8_needs_a_gpu_that_has_it() -> None:
    config = replace(ON_GPU, memory_dtype="float8_e4m3fn")
    for capability in ((8, 9), (9, 0), (12, 0)):
        assert capability_conflicts(config, capability) == ()
    (fault,) = capability_conflicts(config, (8, 6))
    assert fault.field == "memory_dtype"
    assert "needs a GPU of compute capability 8.9 or more; cuda:0 has 8.6" in str(fault)
    assert capability_conflicts(ON_GPU, (7, 5)) == ()
