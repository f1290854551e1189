"""What streams remember: books in plain Python (`ledger` for a stream, `pages` for all, `page_table` for a step), the
storage that all share (`pool`, `state`), steps over it (`step`), and the backends that read it.

Dimension letters: F frames of a step, P tokens of a frame, H heads, D channels of a head, N token places of a stream's
storage, L layers that keep a memory.
"""
