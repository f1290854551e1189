"""Images of any format become 8-bit BGR by documented rules, and an unreadable one does not stop the others."""

import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources.exif import first_orientation, upright
from retinad.pipeline.sources.images import ImagesReader, decode
from retinad.pipeline.sources.paths import list_images, match_files, natural_key, open_path
from retinad.pipeline.sources.reader import UnreadableImage

from ..capture.rig import lossless

HEIGHT, WIDTH = 48, 64
Image = npt.NDArray[np.integer | np.floating]


def random_image(channels: int = 3, dtype: type[np.unsignedinteger] = np.uint8) -> npt.NDArray[np.unsignedinteger]:
    shape = (HEIGHT, WIDTH, channels)[: 2 if channels == 1 else 3]
    return np.random.default_rng(channels).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def encode(image: Image, suffix: str = ".png") -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def exif(number: int) -> bytes:
    """A TIFF header with one entry, the orientation."""
    return b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, number, 0, 0)


def png_with_chunks(image: Image, *chunks: tuple[bytes, bytes]) -> bytes:
    data = encode(image)
    pieces = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    ]
    return data[:33] + b"".join(pieces) + data[33:]  # after the signature and IHDR


def png_with_exif(image: Image, number: int) -> bytes:
    return png_with_chunks(image, (b"eXIf", exif(number)))


def jpeg_with_exif(image: Image, number: int) -> bytes:
    body = b"Exif\0\0" + exif(number)
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(body) + 2) + body + encode(image, ".jpg")[2:]


def test_gray_is_repeated() -> None:
    gray = random_image(1)
    assert np.array_equal(decode(encode(gray)), np.repeat(gray[:, :, None], 3, axis=2))


def test_sixteen_bits_keep_the_upper_eight() -> None:
    deep = random_image(3, np.uint16)
    assert np.array_equal(decode(encode(deep)), (deep >> 8).astype(np.uint8))
    gray = random_image(1, np.uint16)
    assert np.array_equal(decode(encode(gray))[:, :, 0], (gray >> 8).astype(np.uint8))


def test_transparent_parts_are_blended_with_white() -> None:
    image = random_image(4)
    image[0, 0] = (10, 20, 30, 0)
    image[0, 1] = (10, 20, 30, 255)
    image[0, 2] = (0, 100, 255, 51)
    pixels = decode(encode(image))
    assert pixels[0, :3].tolist() == [[255, 255, 255], [10, 20, 30], [204, 224, 255]]
    alpha = image[:, :, 3:] / 255.0
    assert np.abs(pixels - (image[:, :, :3] * alpha + 255 * (1 - alpha))).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("number", range(1, 9))
def test_exif_orientation_is_applied_to_every_format(number: int) -> None:
    image = random_image()[:6, :8].repeat(8, axis=0).repeat(8, axis=1)  # large blocks, for JPEG
    expected = upright(image, number)
    assert np.array_equal(decode(png_with_exif(image, number)), expected)
    by_opencv = decode(jpeg_with_exif(image, number))
    assert by_opencv.shape == expected.shape
    assert np.abs(by_opencv.astype(int) - upright(decode(encode(image, ".jpg")), number).astype(int)).max() <= 8


def test_transparency_and_orientation_combine() -> None:
    assert np.array_equal(decode(png_with_exif(random_image(4), 6)), upright(decode(encode(random_image(4))), 6))


@pytest.mark.parametrize("tail", [b"", b"MM", b"XX\0*\0\0\0\x08", b"II*\0\xff\xff\xff\xff", exif(0), exif(9)])
def test_damaged_orientation_means_upright(tail: bytes) -> None:
    assert first_orientation(tail) == 1
    assert decode(png_with_chunks(random_image(), (b"eXIf", tail))).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("shape", [(1, 1), (241, 321), (1, 1000)])
def test_odd_sizes_are_read(shape: tuple[int, int]) -> None:
    assert decode(encode(np.zeros((*shape, 3), np.uint8))).shape == (*shape, 3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"hello world", "not an image"),
        (encode(random_image(), ".jpg")[:1500], "truncated"),
        (encode(random_image())[:3000], "not an image|damaged"),
        (encode(random_image().astype(np.float32), ".tiff"), "float32"),
    ],
    ids=["empty", "text", "half a jpeg", "half a png", "float"],
)
def test_unreadable_images_say_why(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(data)


def test_a_header_that_claims_a_huge_image_costs_no_memory() -> None:
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    data = bytearray(encode(random_image()))
    data[16:29] = head
    data[29:33] = struct.pack(">I", zlib.crc32(b"IHDR" + head))
    with pytest.raises(ValueError, match="larger than 67 megapixels: 100000x100000"):
        decode(bytes(data))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([".png", ".jpg", ".bmp", ".tiff", ".webp", ".ppm"]), st.data())
def test_any_damaged_file_is_an_image_or_an_error(suffix: str, draw: st.DataObject) -> None:
    data = bytearray(encode(random_image(), suffix))
    for _ in range(draw.draw(st.integers(1, 8))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    del data[draw.draw(st.integers(1, len(data))) :]
    with suppress(ValueError):
        pixels = decode(bytes(data))
        assert pixels.dtype == np.uint8
        assert pixels.shape[2:] == (3,)
        assert pixels.flags.c_contiguous


@pytest.mark.parametrize("special", ["/dev/zero", "pipe"])
def test_a_special_file_is_left_out_unread(tmp_path: Path, special: str) -> None:
    """A pipe would block, and reading half a GiB of a device takes longer than the stall timeout."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.png").symlink_to(special)
    reader = ImagesReader([str(tmp_path / "a.png")])
    assert reader.grab() is not None
    with pytest.raises(UnreadableImage, match="it is not a regular file"):
        reader.retrieve(None)


def test_natural_order() -> None:
    names = ["f10.png", "f2.png", "F1.png", "f01.png", "a.png", "10.png", "9.png", "f2b1.png", "f2a10.png", "f2a9.png"]
    ordered = [
        "9.png",
        "10.png",
        "a.png",
        "F1.png",
        "f01.png",
        "f2.png",
        "f2a9.png",
        "f2a10.png",
        "f2b1.png",
        "f10.png",
    ]
    assert sorted(names, key=natural_key) == ordered


def test_folders_are_listed_with_their_gaps(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(12)
    (folder / "f3.png").unlink()
    (folder / "notes.txt").write_text("x")
    names = [Path(path).name for path in list_images(str(folder))]
    assert names == [f"f{number}.png" for number in range(12) if number != 3]
    assert [Path(path).name for path in match_files(f"{folder}/f1*.png")] == ["f1.png", "f10.png", "f11.png"]


def test_two_stars_match_any_number_of_folders(tmp_path: Path) -> None:
    for place in ("", "a", "a/b", "a/b/c", ".hidden"):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "f.png").touch()
    (tmp_path / "a" / "b.png").mkdir()
    for number in range(9):
        (tmp_path / "a" / f"back{number}").symlink_to(tmp_path)
    expected = ["a/b/c/f.png", "a/b/f.png", "a/f.png", "f.png"]
    for pattern in ("**/*.png", "**/**/*.png", "**/f.png"):
        found = match_files(f"{tmp_path}/{pattern}")
        assert sorted(os.path.relpath(path, tmp_path) for path in found) == expected, pattern
    assert len(match_files(f"{tmp_path}/a/**/f.png")) == 3
    for pattern in ("de**/*.png", "**e/*.png", "a/**.png"):
        with pytest.raises(SourceError, match="must be alone between slashes"):
            match_files(f"{tmp_path}/{pattern}")
    assert len(match_files(f"{tmp_path}/*/*.png")) == 1
    with pytest.raises(SourceError, match="no file matches"):
        match_files(f"{tmp_path}/**/*.tif")


def test_each_wrong_path_has_its_own_message(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "v1.mp4").write_text("x")
    (tmp_path / "v2.mp4").write_text("x")
    messages = set()
    for name, fault in (
        ("nothere.mp4", SourceFault.MISSING),
        ("clip_%03d.png", SourceFault.MISSING),
        ("*.png", SourceFault.MISSING),
        ("folder", SourceFault.MISSING),
        ("empty.mp4", SourceFault.UNREADABLE),
        ("v*.mp4", SourceFault.UNREADABLE),
    ):
        path = str(tmp_path / name)
        with pytest.raises(SourceError) as caught:
            open_path(path, lossless(path))
        assert caught.value.fault is fault
        assert path in str(caught.value)
        messages.add(str(caught.value).replace(path, ""))
    assert len(messages) == 6


# A folder that another program writes to


def numbered_folder(folder: Path, count: int = 3) -> list[str]:
    for number in range(count):
        cv2.imwrite(str(folder / f"{number}.png"), np.full((HEIGHT, WIDTH, 3), number, np.uint8))
    return list_images(str(folder))


def played(reader: ImagesReader) -> list[int | None]:
    """The numbers of the pictures in the order in which they are read; None for one that cannot be decoded."""
    numbers: list[int | None] = []
    while reader.grab() is not None:
        try:
            numbers.append(int(reader.retrieve(None)[0, 0, 0]))
        except UnreadableImage:
            numbers.append(None)
    return numbers


@pytest.mark.parametrize("rest", ["at once", "never"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_picture_half_written_at_its_turn_is_read_after_the_others(tmp_path: Path, share: float, rest: str) -> None:
    paths = numbered_folder(tmp_path)
    whole = Path(paths[0]).read_bytes()
    Path(paths[0]).write_bytes(whole[: round(share * len(whole))])
    reader = ImagesReader(paths, patient=True)
    assert reader.grab() is not None
    assert reader.retrieve(None)[0, 0, 0] == 1
    if rest == "at once":
        Path(paths[0]).write_bytes(whole)
    assert played(reader) == [2, 0 if rest == "at once" else None]


def test_a_damaged_old_picture_keeps_its_turn(tmp_path: Path) -> None:
    paths = numbered_folder(tmp_path)
    Path(paths[0]).write_bytes(b"x")
    os.utime(paths[0], (1, 1))
    assert played(ImagesReader(paths, patient=True)) == [None, 1, 2]


def test_a_picture_that_vanishes_is_left_out(tmp_path: Path) -> None:
    paths = numbered_folder(tmp_path)
    os.remove(paths[0])
    assert played(ImagesReader(paths, patient=True)) == [None, 1, 2]


def test_a_recording_keeps_its_order(tmp_path: Path) -> None:
    """`extract` names each picture by its place."""
    paths = numbered_folder(tmp_path)
    Path(paths[0]).write_bytes(b"")
    reader = open_path(str(tmp_path), lossless(tmp_path))
    assert isinstance(reader, ImagesReader)
    assert played(reader) == [None, 1, 2]
