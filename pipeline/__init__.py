"""From cameras to records. The way of a frame:

    sources -> capture -> frame_queue -> pump -> worker (engine) -> delivery -> publish

`sources` read pixels, each in a process of its own that `capture` controls; `frames` defines what travels. A
`frame_queue` per camera drops or blocks when it is full. The `pump` takes frames from all queues and runs steps in the
`worker`, the one thread that owns the `engine`: it resizes images, runs the `model` with every stream's KV `cache`, and
copies the outputs to the host. `delivery` numbers and counts the records, `publish` sends them. `config` and `errors`
are shared by all; `files` writes files atomically.

Nothing is imported here: a capture process needs neither torch nor ZeroMQ, and starts in a fraction of a second.
"""
