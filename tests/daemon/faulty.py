"""An engine that fails as a test says, around a small real one; as a program, the whole service with such an engine.

`faulty.py hang run --config FILE`
"""

import sys
import time
from collections.abc import Iterator, Sequence

import torch

from retinad.daemon.cli.app import main
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine import open as opening
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.engine.model_runner import WhileDeviceBusy
from retinad.pipeline.frames import Frame

AT = 6
"""Number of the step, from 1, that fails: its forward does."""

ILLEGAL_ACCESS = RuntimeError("CUDA error: an illegal memory access was encountered")
BUSY = torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")


class FaultyEngine(Engine):
    """Fails at a step.

    Args:
        config: the model.
        error: what is raised, or the seconds that the step hangs.
        times: steps in a row that fail.
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
    """A new one each time: a traceback would grow."""
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


if __name__ == "__main__":
    assert sys.argv.pop(1) == "hang"
    opening.Engine = lambda config: FaultyEngine(config, 60.0)  # type: ignore[misc,assignment]
    main()
