"""A small real engine that fails on purpose; as a program, the whole service with such an engine.

`faulty.py hang run --config FILE`
"""

import sys
import time
from collections.abc import Iterator, Sequence

import torch

from retinad.daemon.cli.app import main
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine import open as engine_open
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.engine.model_runner import WhileDeviceBusy
from retinad.pipeline.frames import Frame

AT = 6
"""Number of the step, from 1, whose forward pass fails."""

ILLEGAL_ACCESS = RuntimeError("CUDA error: an illegal memory access was encountered")
BUSY = torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")


class FaultyEngine(Engine):
    """Fails at one step, or several in a row.

    Args:
        config: the model.
        error: the exception to raise, or the seconds to hang.
        times: number of steps that fail.
    """

    def __init__(self, config: ModelConfig, error: Exception | float, times: int = 1) -> None:
        super().__init__(config)
        self._error = error
        self._failing = range(AT, AT + times)
        self._steps = 0
        self.model_runner.model.register_forward_pre_hook(self._fail)

    def step_outputs(
        self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None
    ) -> Iterator[StepOutput]:
        self._steps += 1
        return super().step_outputs(frames, while_device_busy)

    def _fail(self, model: object, arguments: object) -> None:
        if self._steps not in self._failing:
            return
        if isinstance(self._error, Exception):
            raise self._error
        time.sleep(self._error)


def out_of_memory() -> torch.OutOfMemoryError:
    """A new exception each time: the traceback of a shared one would grow."""
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


if __name__ == "__main__":
    assert sys.argv.pop(1) == "hang"
    setattr(engine_open, "Engine", lambda config: FaultyEngine(config, 60.0))  # noqa: B010  # `open_engine` makes this one
    main()
