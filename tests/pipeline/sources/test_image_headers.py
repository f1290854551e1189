"""What an image file declares is followed: its end, its white, its fourth channel, its number of pictures."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, PngImagePlugin

from retinad.pipeline.sources.headers import read_header
from retinad.pipeline.sources.images import ImageFile, ImagesReader, decode
from retinad.pipeline.sources.reader import UnreadableImage

Pixels = npt.NDArray[np.uint8]
FLAT = np.full((48, 64, 3), (30, 60, 200), np.uint8)
EXIF = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)


def encode(image: Pixels, suffix: str, *parameters: int) -> bytes:
    return cv2.imencode(suffix, image, parameters)[1].tobytes()


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


# -- bytes behind the end


@pytest.mark.parametrize(
    "tail",
    [
        b"\0\0\0\x18ftypisom" + b"\xff\xda" * 40,
        b"\xff\xda\xff\xd9\xff\xd8\xff\xda" * 9,
        encode(FLAT[:8, :8], ".jpg"),
        b"\xff" * 99,
        np.random.default_rng(0).bytes(10_000),
    ],
    ids=["video", "markers", "jpeg", "ones", "noise"],
)
@pytest.mark.parametrize("progressive", [0, 1])
def test_bytes_behind_a_jpeg_are_no_part_of_it(tail: bytes, progressive: int) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)
    data = encode(noise, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive, cv2.IMWRITE_JPEG_RST_INTERVAL, 2)
    assert np.array_equal(decode(data + tail), decode(data))
    for kept in (len(data) // 2, len(data) - 2):
        with pytest.raises(ValueError, match="truncated"):
            decode(data[:kept])


def test_a_thumbnail_in_a_jpeg_does_not_end_it() -> None:
    thumbnail = encode(FLAT[:8, :8], ".jpg")
    data = encode(FLAT, ".jpg")
    whole = data[:2] + b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail + data[2:]
    assert np.array_equal(decode(whole), decode(data))
    with pytest.raises(ValueError, match="truncated"):
        decode(whole[: len(whole) - 40])


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".ppm", ".tiff"])
def test_bytes_behind_other_images_are_no_part_of_them(suffix: str) -> None:
    data = encode(FLAT, suffix)
    tail = b"\0\0\0\x1aeXIf" + EXIF + b"EXIF\x1a\0\0\0" + EXIF
    assert np.array_equal(decode(data + tail), decode(data))


def test_exif_is_a_chunk_and_not_a_word() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "kept from eXIf and from EXIF")
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(FLAT)
    assert decode(saved(image, "PNG", exif=exif, pnginfo=info)).shape == (64, 48, 3)
    assert decode(saved(image, "PNG", pnginfo=info)).shape == (48, 64, 3)
    assert decode(saved(image, "WEBP", exif=exif, xmp=b"EXIF")).shape == (64, 48, 3)
    assert decode(saved(image, "WEBP", xmp=b"EXIF\x1a\0\0\0" + EXIF)).shape == (48, 64, 3)


# -- white


@pytest.mark.parametrize("white", [1, 3, 15, 100, 255, 256, 1023, 4095, 16383, 65535])
@pytest.mark.parametrize("kind", ["P2", "P3", "P5", "P6"])
def test_the_greatest_value_of_a_pnm_is_white(kind: str, white: int) -> None:
    values = np.array([0, white // 2, white], np.uint16).repeat(3 if kind in ("P3", "P6") else 1)
    raw = kind in ("P5", "P6")
    body = values.astype(np.uint8 if white < 256 else ">u2").tobytes() if raw else " ".join(map(str, values)).encode()
    pixels = decode(f"{kind}\n# a comment 9 9\n3 1\n{white}\n".encode() + body)[0, :, 0]
    assert pixels[0] == 0
    assert pixels[2] == 255
    assert abs(int(pixels[1]) - white // 2 * 255 / white) <= 1


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_few_bits_of_a_png_are_scaled_once(depth: int) -> None:
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 8 // depth, 1, depth, 0, 0, 0, 0)),
        (b"tRNS", struct.pack(">H", 1)),
        (b"IDAT", zlib.compress(bytes([0, 1 << (8 - depth) | (1 << depth) - 1]))),  # 1, then zeros, and white
        (b"IEND", b""),
    )
    pieces = (struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks)
    levels = decode(b"\x89PNG\r\n\x1a\n" + b"".join(pieces))[0, :, 0].tolist()
    assert (levels[0], levels[-1], set(levels[1:-1])) == (255, 255, set() if depth == 4 else {0})


# -- the fourth channel, and gray that is transparent


def rgba(alpha: int) -> Image.Image:
    return Image.fromarray(np.full((8, 8, 4), (200, 100, 50, alpha), np.uint8))


@pytest.mark.parametrize("alpha", [0, 51, 128, 255])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000"])
def test_transparency_is_multiplied_once(kind: str, alpha: int) -> None:
    expected = [round(255 + (value - 255) * alpha / 255) for value in (50, 100, 200)]
    assert np.abs(decode(saved(rgba(alpha), kind))[0, 0].astype(int) - expected).max() <= 1


def tiff_with_extra(extra: int | None) -> bytes:
    """A TIFF of four samples of 8 bits, whose fourth is what `extra` says, or not described."""
    tags = [(256, 3, 1, 2), (257, 3, 1, 2), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 200)]
    tags += [(277, 3, 1, 4), (278, 3, 1, 2), (279, 4, 1, 16)]
    tags += [] if extra is None else [(338, 3, 1, extra)]
    entries = b"".join(
        struct.pack("<HHI", tag, kind, count) + struct.pack("<H2x" if kind == 3 else "<I", value)
        for tag, kind, count, value in tags
    )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)
    return head.ljust(200, b"\0") + bytes([100, 50, 25, 128]) * 4


@pytest.mark.parametrize(
    ("extra", "expected"), [(1, [152, 177, 227]), (2, [139, 152, 177]), (0, [25, 50, 100]), (None, [25, 50, 100])]
)
def test_a_fourth_channel_is_what_the_file_says(extra: int | None, expected: list[int]) -> None:
    """Premultiplied, transparency, and two that are none."""
    assert np.abs(decode(tiff_with_extra(extra))[0, 0].astype(int) - expected).max() <= 1


def test_cmyk_is_no_transparency() -> None:
    cmyk = Image.fromarray(np.full((8, 8, 4), (200, 100, 50, 128), np.uint8), "CMYK")
    expected = np.array(cmyk.convert("RGB").getpixel((0, 0)))[::-1]
    assert np.abs(decode(saved(cmyk, "TIFF"))[0, 0].astype(int) - expected).max() <= 2


def test_a_bmp_of_32_bits_is_opaque() -> None:
    assert decode(saved(rgba(0), "BMP"))[0, 0].tolist() == [50, 100, 200]


def test_transparent_gray_is_white() -> None:
    gray = np.array([[0, 98, 99, 255]], np.uint8)
    assert decode(saved(Image.fromarray(gray), "PNG", transparency=98))[0, :, 0].tolist() == [0, 255, 99, 255]
    deep = saved(Image.fromarray(gray.astype(np.uint16) << 8), "PNG", transparency=98 << 8)
    assert decode(deep)[0, :, 0].tolist() == [0, 255, 99, 255]
    rgb = Image.fromarray(np.stack([gray] * 3, axis=-1))
    assert decode(saved(rgb, "PNG", transparency=(98, 98, 98)))[0, :, 0].tolist() == [0, 255, 99, 255]


# -- several pictures in one file

LEVELS = [10, 80, 160, 240]
DELAYS_MS = [100, 500, 100, 300]


def several(kind: str, **options: object) -> bytes:
    first, *more = (Image.fromarray(np.full((16, 32, 3), level, np.uint8)) for level in LEVELS)
    if kind != "TIFF":
        options["duration"] = DELAYS_MS
    return saved(first, kind, save_all=True, append_images=more, **options)


@pytest.mark.parametrize("kind", ["TIFF", "PNG", "WEBP"])
def test_all_pictures_of_a_single_file_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{ {'TIFF': 'tif'}.get(kind, kind.lower()) }"
    path.write_bytes(several(kind, **({"lossless": True} if kind == "WEBP" else {})))
    reader = ImagesReader([str(path)])
    assert reader.info.frame_count == 4
    seen, times_ms = [], []
    while (grabbed := reader.grab()) is not None:
        seen.append(int(reader.retrieve(None).mean()))
        times_ms.append(None if grabbed.pts_ns is None else grabbed.pts_ns / 1e6)
    assert seen == LEVELS
    assert times_ms == ([None] * 4 if kind == "TIFF" else [0, 100, 600, 700])


def test_in_a_folder_the_pictures_left_out_are_counted(
    tmp_path: Path, make_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for kind, suffix in (("TIFF", ".tif"), ("PNG", ".png"), ("WEBP", ".webp"), ("BMP", ".bmp")):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(encode(FLAT, suffix) if kind == "BMP" else several(kind))
        paths.append(str(path))
    reader = ImagesReader(paths)
    for _ in paths:
        assert reader.grab() is not None
        reader.retrieve(None)
    assert reader.grab() is None
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" pictures")[0] for line in lines] == [f"left out: {path}: 3 of its 4" for path in paths[:3]]


def test_a_damaged_page_leaves_the_others_readable(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    data = several("PNG")
    path.write_bytes(data[: data.rindex(b"fdAT")])
    reader = ImagesReader([str(path)])
    seen = []
    while reader.grab() is not None:
        try:
            seen.append(int(reader.retrieve(None).mean()))
        except UnreadableImage:
            seen.append(-1)
    assert len(seen) == 4
    assert all(level in (-1, right) for level, right in zip(seen, LEVELS, strict=True))


def test_a_chain_of_pages_that_never_ends_is_cut() -> None:
    data = bytearray(tiff_with_extra(2))
    data[8 + 2 + 10 * 12 : 8 + 2 + 10 * 12 + 4] = struct.pack("<I", 8)  # the next page is the first
    assert read_header(bytes(data)).pictures == 1


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tiff", ".ppm", ".jp2"])
def test_the_size_of_every_format_is_known(suffix: str) -> None:
    assert read_header(encode(FLAT, suffix)).size == (64, 48)


def test_a_chunk_that_claims_4_gb_costs_no_memory() -> None:
    data = bytearray(encode(FLAT, ".png"))
    data[33] = 0xF6
    with pytest.raises(ValueError, match="damaged or truncated"):
        ImageFile(bytes(data))


def test_an_image_that_is_too_large_is_called_so() -> None:
    for data in (encode(np.zeros((8193, 8193), np.uint8), ".png"), b"P5 70000 1000 255\n"):
        with pytest.raises(ValueError, match="larger than 67 megapixels"):
            ImageFile(data)
