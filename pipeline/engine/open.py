"""Opens an engine: weights loaded, warm, errors of the device translated."""

import os
from collections.abc import Sequence

import torch

from ..config import ModelConfig
from ..errors import ModelError
from ..frames import Size
from ..model.devices import is_out_of_memory
from .device_faults import DeviceFaults
from .engine import Engine


def open_engine(model: ModelConfig, sizes: Sequence[Size] = ()) -> Engine:
    """The engine with its weights loaded, warm for pictures of these sizes.

    Raises:
        ModelError: the weights cannot be used, or there is no room for them.
        DeviceError: the device failed.
    """
    # A core for the captures and the event loop: torch's threads spin while they wait for one another. Measured with
    # the tiny model on two cores that others used too: 0.7 to 3.6 frames/s with two threads, 3.6 to 8.1 with one.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    device = model.device
    try:
        engine = Engine(model)
        engine.warm_up(sizes)
    except (RuntimeError, MemoryError) as error:
        DeviceFaults(device).check(error)
        if is_out_of_memory(error):
            raise ModelError(f"{device} has no room for the model: {error}") from error
        raise
    return engine
