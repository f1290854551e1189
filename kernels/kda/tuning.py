"""Reads the tuning tables, which hold checked launch parameters per architecture. Nothing is tuned at run time.

Tables such as `configs/sm_90.json` are written by `python -m retinad.kernels.kda.tune`, which accepts an entry only
after comparing every kernel's result with the reference. `configs/generic.json` is used for all other devices and
sizes.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

LAUNCHES = ("intra", "scan", "pieces", "maps", "chain")
BLOCKS = ("block_s", "scan_block_v", "pieces_block_v", "maps_block_r", "chain_block_v")
_FOLDER = Path(__file__).parent / "configs"


@dataclass(frozen=True, slots=True)
class Launch:
    """The number of warps per program, of software pipeline stages, and of registers per thread (None for no limit)."""

    num_warps: int
    num_stages: int
    maxnreg: int | None = None


@dataclass(frozen=True, slots=True)
class ScanCosts:
    """Measured costs that decide whether sequences are cut. They do not affect results."""

    scan_us: float  # one chunk of whole sequences, with fewer programs than multiprocessors
    piece_us: float  # one chunk of pieces, including maps, with programs_per_sm programs on each multiprocessor
    chain_us: float  # one piece in the chain of states
    split_us: float  # the two additional launches
    programs_per_sm: int


@dataclass(frozen=True, slots=True)
class KdaConfig:
    """One row of a table: the launches of `chunk_kda` for one key width."""

    intra: Launch
    scan: Launch  # for whole sequences: few programs, each as fast as possible
    pieces: Launch  # for pieces: many programs
    maps: Launch
    chain: Launch
    block_s: int  # number of columns of K per step of intra_kernel
    scan_block_v: int  # number of columns of V per program
    pieces_block_v: int
    maps_block_r: int  # number of rows of [M^T; h^T] per program
    chain_block_v: int
    costs: ScanCosts

    @classmethod
    def from_row(cls, row: dict[str, object]) -> "KdaConfig":
        """Parse one JSON object. Raises KeyError for a missing key and ValueError for a value of the wrong type."""
        values: dict[str, Any] = {name: Launch(*_ints(row[name])) for name in LAUNCHES}
        values |= {name: row[name] for name in BLOCKS}
        costs = row["costs"]
        if not isinstance(costs, dict):
            raise ValueError(f"costs: expected an object, got {costs!r}")
        return cls(**values, costs=ScanCosts(**costs))

    def to_row(self) -> dict[str, object]:
        """The JSON object that `from_row` parses."""
        launches = {name: getattr(self, name) for name in LAUNCHES}
        row: dict[str, object] = {
            name: [x for x in (launch.num_warps, launch.num_stages, launch.maxnreg) if x is not None]
            for name, launch in launches.items()
        }
        return row | {name: getattr(self, name) for name in BLOCKS} | {"costs": asdict(self.costs)}


@cache
def kda_config(capability: tuple[int, int], bits: int, block_k: int) -> KdaConfig:
    """The configuration for inputs of `bits` (16 or 32) bits and keys padded to `block_k`, on devices of `capability`.

    Falls back to configs/generic.json, which is correct on every device but not tuned for any.
    """
    name = f"{bits}-{block_k}"
    table = _table(f"sm_{capability[0]}{capability[1]}")
    return KdaConfig.from_row(table.get(name) or _table("generic")[name])


@cache
def _table(name: str) -> dict[str, dict[str, object]]:
    path = _FOLDER / f"{name}.json"
    if not path.exists():
        return {}
    rows: dict[str, dict[str, object]] = json.loads(path.read_text())["chunk_kda"]
    return rows


def _ints(value: object) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(x, int) for x in value):
        raise ValueError(f"expected a list of integers, got {value!r}")
    return value
