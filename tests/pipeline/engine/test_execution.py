"""Execution: a configured one runs or raises, and `auto` takes the fastest that can run."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from retinad.pipeline.cache.attention_backend import AttentionBackend
from retinad.pipeline.cache.backends.dense import DenseBackend
from retinad.pipeline.cache.backends.triton import TritonBackend
from retinad.pipeline.config import ExecutionName, ModelConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.execution import choose_execution
from retinad.pipeline.errors import ModelError

from .engine_rig import CONFIG

ON_GPU = replace(CONFIG, device="cuda:1", dtype="bfloat16")
RANGED, DENSE = TritonBackend(), DenseBackend()


def chosen(config: ModelConfig, backend: AttentionBackend) -> str:
    with Engine(CONFIG) as engine:
        return choose_execution(
            config, engine.model_runner.model, engine.model_runner.heads, engine.pool, engine.pose_pool, backend
        ).name


@pytest.mark.parametrize(
    ("config", "backend", "name"),
    [
        (ON_GPU, RANGED, "captured"),
        (ON_GPU, DENSE, "plain"),
        (replace(ON_GPU, dtype="float32"), RANGED, "plain"),
        (replace(ON_GPU, execution="plain"), RANGED, "plain"),
        (replace(ON_GPU, execution="fused"), RANGED, "fused"),
        (CONFIG, DENSE, "plain"),
    ],
)
def test_auto_takes_the_fastest_that_can_run_and_a_name_is_obeyed(
    config: ModelConfig, backend: AttentionBackend, name: str
) -> None:
    if name != "plain" and importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    assert chosen(config, backend) == name


@pytest.mark.parametrize(
    ("execution", "config", "backend", "reason"),
    [
        ("captured", replace(CONFIG, dtype="bfloat16"), RANGED, "CUDA graphs need a CUDA device, not cpu"),
        ("captured", ON_GPU, DENSE, "need attention = 'triton'"),
        ("fused", replace(ON_GPU, dtype="float32"), RANGED, "need dtype = 'bfloat16' or 'float16'"),
        ("auto", replace(ON_GPU, memory_dtype="float8_e4m3fn"), DENSE, "'float8_e4m3fn' needs fused execution"),
    ],
)
def test_an_impossible_execution_is_refused_with_the_reason(
    execution: ExecutionName, config: ModelConfig, backend: AttentionBackend, reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        chosen(replace(config, execution=execution), backend)


def test_float8_on_a_gpu_that_lacks_it_is_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinad.pipeline.compatibility.importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("retinad.pipeline.engine.execution.device_capability", lambda device: (8, 6))
    with pytest.raises(ModelError, match=r"compute capability 8\.9 or more; cuda:1 has 8\.6"):
        chosen(replace(ON_GPU, memory_dtype="float8_e4m3fn"), RANGED)


def test_without_triton_a_gpu_runs_the_plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with only `kda` blocks needs no attention backend, and the kernels' references cannot be captured."""
    delta = replace(ON_GPU, network=replace(ON_GPU.network, mixers=("kda",)))
    monkeypatch.setattr("retinad.pipeline.compatibility.importlib.util.find_spec", lambda name: None)
    assert chosen(delta, DENSE) == "plain"


def test_the_engines_device_is_its_threads_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, and graphs capture only that device's streams. So it must be `cuda:1`."""
    current: list[torch.device] = []

    def not_loaded(config: ModelConfig) -> None:
        raise ModelError(f"with {current[0]}")

    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr("retinad.pipeline.engine.engine.load_model", not_loaded)
    with pytest.raises(ModelError, match="with cuda:1"):
        Engine(ON_GPU)
