"""Opens an engine: loads the weights, warms up, translates device errors."""

import os
from collections.abc import Sequence

import torch

from ..config import ModelConfig
from ..errors import ModelError
from ..frames import Size
from ..model.devices import installation_fault, is_out_of_memory
from .device_faults import DeviceFaults
from .engine import Engine
from .stepper import OnPass, ignore_pass


def open_engine(model: ModelConfig, sizes: Sequence[Size] = (), on_pass: OnPass = ignore_pass) -> Engine:
    """Load the model and warm it up for frames of these sizes.

    Args:
        model: the model.
        sizes: width and height of frames.
        on_pass: called after each forward pass of the warm-up.

    Raises:
        ModelError: the weights cannot be used or do not fit in memory, or the device cannot be used as installed.
        DeviceError: the device failed.
    """
    # Leaves a core for the captures and the event loop: torch's threads spin while they wait for each other. Measured
    # with the tiny model on two shared cores: 0.7 to 3.6 frames/s with two threads, 3.6 to 8.1 with one.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    device = model.device
    try:
        engine = Engine(model)
        engine.warm_up(sizes, on_pass)
    except (RuntimeError, MemoryError) as error:
        if (reason := installation_fault(error)) is not None:
            raise ModelError(f"{device} cannot be used: {reason}") from error
        DeviceFaults(device).check(error)
        if is_out_of_memory(error):
            raise ModelError(f"{device} has too little memory for the model: {error}") from error
        raise
    return engine
