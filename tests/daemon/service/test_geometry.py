"""The convention of poses and depths, from a drawn room through the service to the client's points."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
import cv2
import numpy as np
import pytest

from retinad.client import FeaturesRecord, Record
from retinad.daemon.exit_codes import ExitCode

from ..in_process import InProcessService, until
from ..records import features_of, record_of
from ..room import WALK, AllKnowingEngine, Floats, camera_matrix, look, paint, pixels_of, world_points
from ..service_rig import camera, write_config

HALF_ULP = 2.0**-11
"""The largest relative error of a depth in float16."""


@dataclass(frozen=True)
class View:
    """How the camera's frames become images of the model, with the results worked out by hand.

    Attributes:
        captured: width and height of the captured frame.
        shown: left, top, width and height of what is used of it.
        resized: width and height to which that is resized.
        offset: column and row of the resized picture at which the model's image begins; negative with padding.
        model: width and height of the model's image.
    """

    captured: tuple[int, int]
    shown: tuple[int, int, int, int]
    resized: tuple[int, int]
    offset: tuple[int, int]
    model: tuple[int, int]
    resize: Literal["crop", "pad"] = "crop"

    def source_of(self, pixels: Floats) -> Floats:
        """Pixels of the captured frame: pixel edges are mapped, and centres are half a pixel from the edges."""
        sizes = np.array(self.shown[2:]) / np.array(self.resized)
        found: Floats = (pixels + np.array(self.offset) + 0.5) * sizes - 0.5 + np.array(self.shown[:2])
        return found

    @property
    def source_camera(self) -> Floats:
        """The camera matrix of the captured frame: the two points that fix it, mapped to the source."""
        matrix = camera_matrix(*self.model)
        centre = self.source_of(matrix[:2, 2])
        fx, fy = self.source_of(matrix[:2, 2] + matrix[[0, 1], [0, 1]]) - centre
        return np.array([[fx, 0, centre[0]], [0, fy, centre[1]], [0, 0, 1]])


VIEWS = {
    "whole": View((200, 150), (0, 0, 200, 150), (112, 84), (0, 0), (112, 84)),
    "rows cut off": View((120, 150), (0, 0, 120, 150), (112, 140), (0, 14), (112, 112)),
    "padded": View((200, 150), (0, 0, 200, 150), (112, 84), (0, -14), (112, 112), "pad"),
    "cropped and padded": View((200, 150), (30, 20, 75, 100), (84, 112), (-14, 0), (112, 112), "pad"),
}


@pytest.fixture(params=VIEWS)
def view(request: pytest.FixtureRequest) -> View:
    return VIEWS[request.param]


def draw(view: View) -> list[Floats]:
    """The captured frames."""
    everywhere = pixels_of(*view.captured)
    return [np.rint(paint(world_points(step.pose, view.source_camera, everywhere))) for step in WALK]


def published(folder: Path, view: View, pictures: list[Floats]) -> list[FeaturesRecord]:
    """What a client receives of the drawn frames."""
    (folder / "frames").mkdir()
    for number, picture in enumerate(pictures):
        assert cv2.imwrite(str(folder / "frames" / f"{number}.png"), picture.astype(np.uint8))
    keys: dict[str, object] = {"mode": "lossless", "resize": view.resize}
    if view.shown[2:] != view.captured:
        keys["crop"] = view.shown
    service = InProcessService(folder, AllKnowingEngine, config=room_config(folder, **keys))

    async def act(records: list[Record]) -> None:
        await anyio.sleep_forever()  # the service ends with the pictures

    assert service.run(act) == ExitCode.OK
    return features_of(service.records)


def room_config(folder: Path, **keys: object) -> Path:
    """A config of a camera that shows the pictures in `folder`/frames."""
    config = write_config(
        folder, camera("robot", folder / "frames", **keys), model='outputs = ["features", "pose", "depth"]'
    )
    text = config.read_text().replace("depth = 2", "depth = 4").replace("image_width = 56", "image_width = 112")
    config.write_text(text.replace("scale_frames = 2", "scale_frames = 1"))
    return config


def test_what_the_service_publishes_of_a_drawn_room_falls_together_at_the_client(tmp_path: Path, view: View) -> None:
    pictures = draw(view)
    records = published(tmp_path, view, pictures)
    assert [record.source_seq for record in records] == list(range(len(WALK)))
    clouds = []
    for record, step, picture in zip(records, WALK, pictures, strict=True):
        assert record.model_size == view.model
        np.testing.assert_allclose(record.world_from_camera.astype(np.float64), step.pose, atol=1e-6)
        np.testing.assert_allclose(record.intrinsics.astype(np.float64), camera_matrix(*view.model), rtol=1e-6)
        np.testing.assert_allclose(record.source_intrinsics.astype(np.float64), view.source_camera, rtol=1e-6)
        points, colours = record.points(image=picture.astype(np.uint8))
        assert colours is not None
        pixels = check_points(points, view, step.pose)
        x, y = np.rint(pixels).astype(int).T
        np.testing.assert_array_equal(colours, picture[y, x])
        clouds.append(points)
    check_pair(records[0], clouds[1], view)
    check_pair(records[4], clouds[2], view)


def test_the_command_writes_the_path_that_a_running_service_publishes(tmp_path: Path) -> None:
    """It learns from the service's own `hello` which camera has poses."""
    (tmp_path / "frames").mkdir()
    for number in range(1000):  # 50 s: it is stopped long before
        cv2.imwrite(str(tmp_path / "frames" / f"{number}.png"), np.zeros((84, 112, 3), np.uint8))
    config = room_config(tmp_path, mode="lossless", fps=20)
    service = InProcessService(tmp_path, AllKnowingEngine, config=config)
    command = ["trajectory", f"ipc://{tmp_path}/features.sock", "-o", str(tmp_path / "p.kitti.txt"), "--frames", "12"]

    async def act(records: list[Record]) -> None:
        await until(lambda: any(map(record_of("robot"), records)))
        done = await anyio.run_process([sys.executable, "-m", "retinad.daemon", *command], check=False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (done.returncode, b"12 poses" in done.stderr) == (0, True), done.stderr.decode()

    assert service.run(act) == ExitCode.OK
    found = np.loadtxt(tmp_path / "p.kitti.txt").reshape(-1, 3, 4)
    truth = np.array([step.pose for step in WALK])
    first = int(np.abs(truth - found[0]).max(axis=(1, 2)).argmin())
    expected = truth[(first + np.arange(12)) % len(WALK)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def check_points(points: Floats, view: View, pose: Floats) -> Floats:
    """Check that every pixel that shows a part of the frame has its point: on a wall, behind its captured pixel.

    Returns:
        the pixels of the captured frame, [N, 2].
    """
    pixels = view.source_of(pixels_of(*view.model)).reshape(-1, 2)
    left, top, width, height = view.shown
    nearest = np.rint(pixels) - (left, top)
    inside = ((nearest >= 0) & (nearest < (width, height))).all(axis=1)
    pixels = pixels[inside]
    assert len(points) == len(pixels) == np.prod(np.minimum(view.resized, view.model))
    expected = world_points(pose, view.source_camera, pixels)
    away = np.linalg.norm(expected - pose[:, 3], axis=1)
    assert (np.linalg.norm(points - expected, axis=1) <= 1.01 * HALF_ULP * away + 1e-5).all()
    seen = (points - pose[:, 3]) @ pose[:, :3] @ view.source_camera.T
    np.testing.assert_allclose(seen[:, :2] / seen[:, 2:], pixels, atol=2e-3)  # float32; depth does not move a pixel
    return pixels


def check_pair(record: FeaturesRecord, other: Floats, view: View) -> None:
    """Points of another frame lie where the record's depth map says that the walls are.

    Between four pixels of one wall, the inverse depth is linear.
    """
    pose = record.world_from_camera.astype(np.float64)
    seen = (other - pose[:, 3]) @ pose[:, :3]
    ahead = seen[:, 2] > 0.1
    seen = seen[ahead]
    at = (seen @ record.intrinsics.astype(np.float64).T)[:, :2] / seen[:, 2:]
    corner = np.floor(at).astype(int)
    inside = ((corner >= 0) & (corner < np.array(view.model) - 1)).all(axis=1)
    seen, at, (column, row) = seen[inside], at[inside], corner[inside].T
    _, walls = look(pose, camera_matrix(*view.model), pixels_of(*view.model))
    one_wall = (walls[row, column] == walls[row + 1, column + 1]) & (walls[row, column + 1] == walls[row + 1, column])
    one_wall &= walls[row, column] == walls[row, column + 1]
    seen, at, column, row = seen[one_wall], at[one_wall], column[one_wall], row[one_wall]
    assert len(seen) > 1000, "the frames overlap"
    inverse = 1 / record.depth.astype(np.float64)
    right, down = (at - np.stack([column, row], axis=1)).T
    upper = (1 - right) * inverse[row, column] + right * inverse[row, column + 1]
    lower = (1 - right) * inverse[row + 1, column] + right * inverse[row + 1, column + 1]
    between = 1 / ((1 - down) * upper + down * lower)
    # Both depths are rounded to float16; on a wall seen at a slant, a point that is moved along its own ray is moved
    # further along that of the other camera.
    error = np.abs(between - seen[:, 2]) / seen[:, 2]
    assert np.median(error) < HALF_ULP
    assert error.max() < 3 * HALF_ULP
