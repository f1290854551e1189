"""The streams' caches: KV cache and recurrent states.

The plain-Python part decides what is where: `window` (the slots of one stream), `allocator` (the spans of all streams),
`page_table` (the visible slots of a step) and `scan_order` (the order of `kda` layers). `kv_pool` and `recurrent_pool`
own the storage, `stream_cache` is one stream's share of it, and `step` reads and writes it through an
`attention_backend`, of which `backends` has the implementations.

Dimension letters: F frames of a step, P tokens of a frame, H heads, D channels of a head, N slots of a stream, T slots
of the pool, L layers with a cache.
"""
