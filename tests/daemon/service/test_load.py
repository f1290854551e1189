"""The service's engine is warmed up for the usual aspect ratios, so that READY means ready."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from retinad.daemon.config.load import load_config
from retinad.daemon.service import load
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Size

from ..service_rig import write_config


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

        def warm_up(self, sizes: Sequence[Size]) -> None:
            assert {width * 9 == height * 16 for width, height in sizes} == {True, False}
            super().warm_up(sizes)

    monkeypatch.setattr("retinad.pipeline.engine.open.Engine", Watched)
    config = load_config(write_config(tmp_path, '[[camera]]\nname = "a"\nsource = "synthetic:"\n'), {})
    with load.make_engine(config):
        assert len(set(forwards)) == 2
        assert len(forwards) == 4, "each size as a stream's first frame and as a later one"
