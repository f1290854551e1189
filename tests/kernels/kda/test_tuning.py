"""The tuning tables: every row parses, the fallback has all sizes, and rows survive a round trip."""

import json
from pathlib import Path

import pytest

from retinad.kernels.kda import tuning
from retinad.kernels.kda.tuning import KdaConfig, kda_config

TABLES = sorted((Path(tuning.__file__).resolve().parent / "configs").glob("*.json"))
SIZES = [(bits, block_k) for bits in (16, 32) for block_k in (64, 128, 256)]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tables_hold_known_keys_and_sane_values(path: Path) -> None:
    rows = json.loads(path.read_text())["chunk_kda"]
    assert set(rows) <= {f"{bits}-{block_k}" for bits, block_k in SIZES}
    for row in rows.values():
        config = KdaConfig.from_row(row)
        assert KdaConfig.from_row(json.loads(json.dumps(config.to_row()))) == config
        for launch in (config.intra, config.scan, config.pieces, config.maps, config.chain):
            assert launch.num_warps in (1, 2, 4, 8)
            assert 1 <= launch.num_stages <= 4
        assert config.block_s == 16  # so that a block of 16 rows stays inside one warp
        assert config.scan_block_v in (16, 32, 64, 128)


@pytest.mark.parametrize(("bits", "block_k"), SIZES)
def test_every_device_has_a_configuration(bits: int, block_k: int) -> None:
    assert kda_config((7, 5), bits, block_k) == kda_config((0, 0), bits, block_k)


def test_the_table_of_the_device_takes_precedence() -> None:
    assert kda_config((9, 0), 16, 64) != kda_config((0, 0), 16, 64)


def test_invalid_rows_are_refused() -> None:
    row = kda_config((0, 0), 16, 64).to_row()
    with pytest.raises(KeyError):
        KdaConfig.from_row({name: value for name, value in row.items() if name != "intra"})
    with pytest.raises(ValueError, match="expected a list of integers"):
        KdaConfig.from_row(row | {"intra": "4"})
    with pytest.raises(ValueError, match="costs: expected an object"):
        KdaConfig.from_row(row | {"costs": 3})
