"""Pictures from the network are decoded in a process that may die without harm."""

import os
import signal
import threading
from pathlib import Path

import anyio
import cv2
import numpy as np
import pytest

from retinad.pipeline.errors import QueryError
from retinad.pipeline.sources import picture_decoder
from retinad.pipeline.sources.images import decode
from retinad.pipeline.sources.picture_decoder import PictureDecoder

PIXELS = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)


def encoded(suffix: str) -> bytes:
    found, data = cv2.imencode(suffix, PIXELS)
    assert found
    return bytes(data)


def pid_of(decoder: PictureDecoder) -> int:
    assert decoder._process is not None
    return int(decoder._process.popen.pid)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp"])
def test_pictures_are_decoded_by_the_rules_of_images(suffix: str) -> None:
    async def run() -> None:
        async with PictureDecoder() as decoder:
            for _ in range(2):
                np.testing.assert_array_equal(await decoder.decode(encoded(suffix)), decode(encoded(suffix)))

    anyio.run(run)


def test_one_process_decodes_all_pictures_and_ends_with_the_decoder() -> None:
    async def run() -> int:
        async with PictureDecoder() as decoder:
            await decoder.decode(encoded(".png"))
            pid = pid_of(decoder)
            await decoder.decode(encoded(".png"))
            assert pid_of(decoder) == pid
        return pid

    assert not Path(f"/proc/{anyio.run(run)}").exists()


@pytest.mark.parametrize(
    "data", [b"", b"no picture", encoded(".jpg")[:200], encoded(".png")[:-40], b"P6 99999 99999 255\n"]
)
def test_what_is_no_picture_is_refused_with_a_reason_and_the_next_one_is_decoded(data: bytes) -> None:
    async def run() -> None:
        async with PictureDecoder() as decoder:
            with pytest.raises(QueryError, match=r"the picture cannot be decoded: \w+"):
                await decoder.decode(data)
            assert (await decoder.decode(encoded(".png"))).shape == PIXELS.shape

    anyio.run(run)


def test_a_process_that_dies_is_replaced() -> None:
    async def run() -> None:
        async with PictureDecoder() as decoder:
            await decoder.decode(encoded(".png"))
            os.kill(pid_of(decoder), signal.SIGSTOP)
            threading.Timer(0.1, os.kill, (pid_of(decoder), signal.SIGKILL)).start()
            with pytest.raises(QueryError, match="ended the process"):
                await decoder.decode(encoded(".png"))
            assert (await decoder.decode(encoded(".png"))).shape == PIXELS.shape

    anyio.run(run)


def test_a_process_that_hangs_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with PictureDecoder() as decoder:
            await decoder.decode(encoded(".png"))
            pid = pid_of(decoder)
            os.kill(pid, signal.SIGSTOP)
            with monkeypatch.context() as patch:
                patch.setattr(picture_decoder, "DECODE_S", 0.2)
                with pytest.raises(QueryError, match=r"not decoded within 0\.2 s"):
                    await decoder.decode(encoded(".png"))
            assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240 - reads no disk
            assert (await decoder.decode(encoded(".png"))).shape == PIXELS.shape

    anyio.run(run)


def test_the_process_gets_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINAD_CAMERA_PASSWORD", "hunter2")

    async def run() -> bytes:
        async with PictureDecoder() as decoder:
            await decoder.decode(encoded(".png"))
            return await anyio.Path(f"/proc/{pid_of(decoder)}/environ").read_bytes()

    assert b"PATH=" in anyio.run(run)
    assert b"hunter2" not in anyio.run(run)
