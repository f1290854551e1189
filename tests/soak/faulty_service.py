"""The real `retinad`, with a model that fails on request. Takes retinad's own command line.

A word in the file that SOAK_FAULT names selects a fault for the next forward pass, which deletes the file.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from retinad.daemon.cli import app as cli
from retinad.pipeline.engine.model_runner import Batch, ModelRunner, WhileDeviceBusy
from retinad.pipeline.frames import Features

HANG_S = 0.7
"""How long a hanging step takes: less than the watchdog's timeout."""


def raises(batch: Batch) -> None:
    raise ZeroDivisionError("requested by the test")


def hangs(batch: Batch) -> None:
    time.sleep(HANG_S)


def runs_out_of_memory(batch: Batch) -> None:
    torch.empty(1 << 50, dtype=torch.uint8)  # PyTorch's own allocator and error


def gives_nan(batch: Batch) -> None:
    for chunk in batch:
        for frame in chunk.frames:
            frame.image.fill_(float("nan"))


FAULTS: tuple[Callable[[Batch], None], ...] = (raises, hangs, runs_out_of_memory, gives_nan)


def inject_faults(request: Path) -> None:
    """Make every forward pass look for a requested fault first."""
    faults = {fault.__name__: fault for fault in FAULTS}
    run = ModelRunner.run

    def run_or_fail(
        self: ModelRunner, batch: Batch, started_ns: int, while_device_busy: WhileDeviceBusy | None = None
    ) -> list[Features]:
        if request.exists():
            fault = faults[request.read_text()]
            request.unlink()
            fault(batch)
        return run(self, batch, started_ns, while_device_busy)

    ModelRunner.run = run_or_fail  # type: ignore[method-assign]


if __name__ == "__main__":
    inject_faults(Path(os.environ["SOAK_FAULT"]))
    cli.main()
