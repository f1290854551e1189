"""Resolves what a camera's table says of its view: reads its calibration and its mask."""

from collections.abc import Iterator
from pathlib import Path

from retinad.pipeline.files.calibration_file import CalibrationError, read_calibration
from retinad.pipeline.sources.mask_picture import MaskError, read_mask
from retinad.pipeline.view_config import Calibration, KnownDistance, Mask, MaskFill, ViewConfig

from .keys import KeyPath
from .problems import KeyFault
from .tables import CameraTable

VIEW_KEYS = ("intrinsics", "mask", "mask_fill", "metres_per_unit", "known_distance")
"""The keys of a camera's table that are resolved here."""


def resolve_view(table: CameraTable, path: KeyPath) -> tuple[ViewConfig, tuple[KeyFault, ...]]:
    """What is known of a camera's view, and what is wrong with the keys that say so."""
    faults: list[KeyFault] = []
    view = ViewConfig(
        calibration=_calibration(table.intrinsics, path, faults),
        mask=_mask(table.mask, path, faults),
        mask_fill=table.mask_fill or MaskFill.NONE,
        metres_per_unit=table.metres_per_unit,
        known_distance=_distance(table, path, faults),
    )
    faults += _conflicts(table, path)
    return view, tuple(faults)


def _calibration(file: str | None, path: KeyPath, faults: list[KeyFault]) -> Calibration | None:
    if file is None:
        return None
    try:
        return read_calibration(Path(file))
    except CalibrationError as error:
        faults.append(KeyFault((*path, "intrinsics"), f"{file} cannot be used: {error}"))
        return None


def _mask(value: str | list[list[list[float]]] | None, path: KeyPath, faults: list[KeyFault]) -> Mask | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return read_mask(Path(value))
        return Mask(polygons=tuple(tuple((x, y) for x, y in polygon) for polygon in value))
    except MaskError as error:
        faults.append(KeyFault((*path, "mask"), f"{value} cannot be used: {error}"))
    except ValueError as error:
        faults.append(KeyFault((*path, "mask"), str(error), "write [[[x, y], [x, y], [x, y]], ...], in source pixels"))
    return None


def _distance(table: CameraTable, path: KeyPath, faults: list[KeyFault]) -> KnownDistance | None:
    known = table.known_distance
    if known is None:
        return None
    if known.from_s >= known.to_s:
        faults.append(KeyFault((*path, "known_distance", "to_s"), f"expected more than from_s = {known.from_s:g}"))
        return None
    return KnownDistance(known.metres, known.from_s, known.to_s)


def _conflicts(table: CameraTable, path: KeyPath) -> Iterator[KeyFault]:
    if table.metres_per_unit is not None and table.known_distance is not None:
        yield KeyFault((*path, "known_distance"), "expected metres_per_unit or known_distance, not both")
    if table.mask is None and table.mask_fill not in (None, MaskFill.NONE):
        yield KeyFault((*path, "mask_fill"), "there is nothing to fill without a mask", "add the key mask")
