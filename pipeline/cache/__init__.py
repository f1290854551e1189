"""The streams' caches: KV cache and recurrent states.

Modules in plain Python decide where each token is stored: `window` (the slots of one stream), `allocator` (the spans of
all streams) and `page_table` (the visible slots of a step). `scan_order` decides in which order `kda` layers process
frames. `kv_pool` and `recurrent_pool` own the storage, `stream_cache` is one stream's share of it, and `step` reads and
writes it. Attention is computed by an `attention_backend`; `backends` has the implementations.

Dimension letters: F frames per step, P tokens per frame, H heads, D channels per head, N slots per stream, T slots in
the pool, L layers with a cache.
"""
