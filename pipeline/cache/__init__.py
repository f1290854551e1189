"""What a stream remembers: bookkeeping in plain Python (`ledger`), and backends that store and read it (`dense`).

Dimension letters: F frames of a step, P tokens of a frame, H heads, D channels of a head, N token places of a stream's
storage, L layers that keep a memory.
"""
