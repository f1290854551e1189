"""How many threads torch may use beside the processes and the event loop that bring it frames."""

import os

import torch


def leave_a_core() -> None:
    """Give torch every core of this process but one."""
    # A core for the captures and the event loop: torch's threads spin while they wait for one another. Measured with
    # the tiny model on two cores that others used too: 0.7 to 3.6 frames/s with two threads, 3.6 to 8.1 with one.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
