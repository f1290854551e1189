"""From cameras to records. A frame passes through these modules in order:

    sources -> capture -> frame_queue -> pump -> worker (engine) -> delivery -> publish

`sources` read pixels, each in a process of its own that `capture` controls; `frames` defines the values that are passed
on. Each camera has a `frame_queue`, which drops frames or blocks the camera when it is full. The `pump` takes frames
from all queues and runs steps in the `worker`, the one thread that owns the `engine`. The engine resizes images, runs
the `model` with every stream's KV `cache`, and copies the outputs to the host. `delivery` numbers and counts the
records, and `publish` sends them. All of them use `config` and `errors`; `files` writes files atomically.

This file imports nothing: a capture process needs neither torch nor ZeroMQ, and starts in a fraction of a second.
"""
