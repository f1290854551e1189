"""File names are bytes: one that is not UTF-8 is read like any other, and shown with its bytes escaped."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources.redact import mask, printable, redact_url
from retinad.pipeline.sources.registry import parse_source

from .reading import failure, numbers
from .rig import lossless, play

pytestmark = pytest.mark.anyio
LATIN_1 = os.fsdecode(b"vid\xe9o")
NAMES = (LATIN_1, os.fsdecode(b"\xff\xfe"), os.fsdecode(b"a\xc3"), "video \u00fc %03d #1")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["path", "glob", "file"])
async def test_a_video_of_any_name_is_read(make_video: Callable[..., Path], name: str, form: str) -> None:
    path = make_video("a.avi", frames=5)
    path = path.rename(path.with_name(f"{name}.avi"))
    source = {"path": str(path), "glob": f"{path.parent}/*.avi", "file": f"file://{path.parent}/*.avi"}[form]
    assert await numbers(lossless(source)) == list(range(5))


@pytest.mark.parametrize("name", NAMES)
async def test_pictures_and_folders_of_any_name_are_read(make_folder: Callable[..., Path], name: str) -> None:
    folder = make_folder(3)
    folder = folder.rename(folder.with_name(name))
    (folder / "f1.png").rename(folder / f"f1{name}.png")
    (folder / f"f2{name}.png").write_text("no image")
    rig = await play(lossless(folder))
    assert len(rig.frames) == 3
    assert [line for line in rig.log if line.startswith("left out: ") and printable(f"f2{name}.png") in line]


@pytest.mark.parametrize("content", [b"", b"no video" * 99, None], ids=["empty", "text", "missing"])
async def test_a_failure_shows_the_name_escaped(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / f"{LATIN_1}.mp4"
    if content is not None:
        path.write_bytes(content)
    exc = await failure(lossless(path))
    assert exc.fault in (SourceFault.UNREADABLE, SourceFault.MISSING)
    assert "vid\\xe9o.mp4" in str(exc)
    str(exc).encode()


async def test_an_address_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(SourceError, match="percent-encode"):
        parse_source(f"rtsp://host/{LATIN_1}")


def test_what_is_shown_can_be_encoded() -> None:
    assert redact_url(LATIN_1) == mask(LATIN_1, LATIN_1) == "vid\\xe9o"
    assert printable("a \u00fc \u20ac") == "a \u00fc \u20ac"
