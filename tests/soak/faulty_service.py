"""The real `retinad`, but for an engine that goes wrong when it is told to. Takes retinad's own command line.

A word in the file that SOAK_FAULT names is a fault of the next run of the model; the file is then gone.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from retinad.daemon.cli import app as cli
from retinad.daemon.config.load import ServiceConfig
from retinad.daemon.service import service
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.model_runner import Batch, WhileDeviceBusy

HANG_S = 0.7
"""A step that hangs for a moment: shorter than the watchdog's patience."""


def raises(batch: Batch) -> None:
    raise ZeroDivisionError("told to raise")


def hangs(batch: Batch) -> None:
    time.sleep(HANG_S)


def runs_out_of_memory(batch: Batch) -> None:
    torch.empty(1 << 50, dtype=torch.uint8)  # PyTorch's own allocator, its own error


def gives_nan(batch: Batch) -> None:
    for chunk in batch:
        for frame in chunk.frames:
            frame.image.fill_(float("nan"))


FAULTS: tuple[Callable[[Batch], None], ...] = (raises, hangs, runs_out_of_memory, gives_nan)


def make_engine(config: ServiceConfig) -> Engine:
    """The service's own engine, its forward wrapped."""
    engine = service.make_engine(config)
    order, run = Path(os.environ["SOAK_FAULT"]), engine.model_runner.run
    faults = {fault.__name__: fault for fault in FAULTS}

    def run_or_fail(batch: Batch, started_ns: int, while_device_busy: WhileDeviceBusy | None = None) -> object:
        if order.exists():
            fault = faults[order.read_text()]
            order.unlink()
            fault(batch)
        return run(batch, started_ns, while_device_busy)

    engine.model_runner.run = run_or_fail
    return engine


if __name__ == "__main__":
    service.Dependencies = partial(service.Dependencies, make_engine=make_engine)
    cli.main()
