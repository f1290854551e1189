"""The service's engine is warmed up for the usual aspect ratios, so that READY means ready."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from structlog.testing import capture_logs

from retinad.daemon.config.load import load_config
from retinad.daemon.service import load
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.stepper import OnPass, ignore_pass
from retinad.pipeline.errors import SettingError
from retinad.pipeline.frames import Size

from ..service_rig import camera, write_config


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_an_engine_is_warmed_up_for_wide_and_for_narrow_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards: list[int] = []

    class Watched(Engine):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config)
            self.model_runner.model.register_forward_pre_hook(lambda _, inputs: forwards.append(inputs[0].shape[2]))

        def warm_up(self, sizes: Sequence[Size], on_pass: OnPass = ignore_pass) -> None:
            assert {width * 9 == height * 16 for width, height in sizes} == {True, False}
            super().warm_up(sizes, on_pass)

    monkeypatch.setattr("retinad.pipeline.engine.open.Engine", Watched)
    config = load_config(write_config(tmp_path, '[[camera]]\nname = "a"\nsource = "synthetic:"\n'), {})
    with load.make_engine(config):
        assert len(set(forwards)) == 2
        assert len(forwards) == 4, "each size as a stream's first frame and as a later one"


@pytest.mark.parametrize(
    ("pass_s", "limit_s", "preset", "expected"),
    [
        (
            25.0,
            20.0,
            "lingbot-map",
            "a step took 25 s on the CPU: raise model.step_timeout_s, which is 20 s, or use p",
        ),
        (25.0, 20.0, "tiny", "or use a smaller network"),
        (11.0, 20.0, "tiny", "a step took 11 s on the CPU, and the largest has 2 frames, about 22 s: raise"),
        (9.0, 20.0, "tiny", None),
    ],
)
def test_a_step_limit_that_the_device_cannot_keep_is_found_in_the_warm_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pass_s: float,
    limit_s: float,
    preset: str,
    expected: str | None,
) -> None:
    """Otherwise the first step ends the process as if the device had failed, and every restart does."""

    class Slow(Engine):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config)
            self.model_runner.model.register_forward_pre_hook(lambda *_: passes.append(pass_s))

    passes: list[float] = []
    monkeypatch.setattr("retinad.pipeline.engine.open.Engine", Slow)
    monkeypatch.setattr("retinad.pipeline.engine.stepper.time", SimpleNamespace(monotonic=lambda: sum(passes)))
    path = write_config(tmp_path, camera("a", "synthetic:"), model=f"step_timeout_s = {limit_s}")
    path.write_text(path.read_text().replace('"tiny"', f'"{preset}"\npatch_embed = "conv"'))
    with capture_logs() as log:
        if expected is None:
            load.make_engine(load_config(path, {}))
        else:
            with pytest.raises(SettingError, match=expected):
                load.make_engine(load_config(path, {}))
    lines = [(line["passes"], line["log_level"]) for line in log if line["event"] == "warming up"]
    assert lines == [(f"{number} of 4", "info") for number in range(1, 5)]
