"""`retinad trajectory` and `retinad cloud` of a service write files that others read, and say what is wrong."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from retinad.client.wire import AlignmentHeader, CameraHeader, EndHeader, GeometryHeader, HelloHeader
from retinad.daemon.cli.app import run_command
from retinad.daemon.exit_codes import ExitCode

from ...client.fake_service import FakeService, fake_service
from ...client.posed import SIZE, UNSURE, WALL, Floats, posed_message, turned
from ...deadlines import scaled
from ..mapping.ply_reader import read_ply

POSED = CameraHeader(name="robot", outputs=("features", "pose", "depth"))
PLAIN = CameraHeader(name="door", outputs=("features",))
PATH = tuple(turned(15.0 * n, 5.0 * n, (0.25 * n, -0.5 * n, 0.125 * n)) for n in range(4))

Act = Callable[[FakeService], None]


def send(service: FakeService, seq: int, pose: Floats, **changes: object) -> None:
    message = posed_message(service.instance, "robot", seq, pose=pose, **changes)  # type: ignore[arg-type]
    service.send(*map(bytes, message))


def walk(service: FakeService) -> None:
    for seq, pose in enumerate(PATH):
        send(service, seq, pose, capture_unix_ns=1_700_000_000_000_000_000 + seq * 10**8)
    service.say(EndHeader(camera="robot", reason="finished"))


@contextmanager
def served(act: Act = walk, cameras: Sequence[CameraHeader] = (PLAIN, POSED), *, goes_on: bool = True) -> Iterator[str]:
    """A service that says which cameras it has, and then does what the test wants once somebody follows one."""
    with fake_service() as service:

        def serve() -> None:
            service.wait_for_subscriptions(1)
            service.say(HelloHeader(cameras=tuple(cameras)))
            if goes_on:
                service.wait_for_subscriptions(3)
                time.sleep(0.1)
                act(service)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield service.endpoint
        finally:
            thread.join()


def test_a_trajectory_has_the_poses_that_the_camera_publishes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("p.tum.txt", "p.kitti.txt", "p.svg", "p.png")
    with served() as endpoint:
        outputs = [argument for name in names for argument in ("-o", str(tmp_path / name))]
        assert run_command(["trajectory", endpoint, *outputs]) == ExitCode.OK
    assert f"following camera robot of {endpoint}" in capsys.readouterr().err
    kitti = np.loadtxt(tmp_path / "p.kitti.txt").reshape(-1, 3, 4)
    np.testing.assert_allclose(kitti, PATH, atol=1e-6)
    tum = np.loadtxt(tmp_path / "p.tum.txt")
    np.testing.assert_allclose(tum[:, 0] - 1_700_000_000, [0, 0.1, 0.2, 0.3], atol=1e-6)
    np.testing.assert_allclose(tum[:, 1:4], [pose[:, 3] for pose in PATH], atol=1e-6)
    # The camera's z axis, from the quaternion: the last column of the matrix that it stands for.
    x, y, z, w = tum[:, 4:].T
    axis = np.stack([2 * (x * z + y * w), 2 * (y * z - x * w), 1 - 2 * (x * x + y * y)], axis=1)
    np.testing.assert_allclose(axis, [pose[:, 2] for pose in PATH], atol=1e-6)
    assert "4 poses" in ElementTree.tostring(ElementTree.parse(tmp_path / "p.svg").getroot(), "unicode")
    image = cv2.imread(str(tmp_path / "p.png"))
    assert image is not None
    assert image.min() < 50


def test_a_cloud_has_the_points_that_the_camera_sees(tmp_path: Path) -> None:
    with served() as endpoint:
        arguments = ["cloud", endpoint, "robot", "-o", str(tmp_path / "c.ply"), "--voxel", "0.2"]
        assert run_command([*arguments, "--min-confidence", "2"]) == ExitCode.OK
    rows, comments = read_ply(tmp_path / "c.ply")
    assert comments == [comments[0], "unit stream", "voxel 0.2", "frames 4"]
    points = np.array([[row["x"], row["y"], row["z"]] for row in rows])
    np.testing.assert_allclose(points[:, 2], WALL, rtol=2**-9)
    assert {row["confidence"] for row in rows} == {3}
    assert len(np.unique(np.floor(points / 0.2), axis=0)) == len(points) < 4 * (SIZE[0] - UNSURE) * SIZE[1]
    heights, light = -points[:, 1], np.array([row["red"] + row["green"] + row["blue"] for row in rows])
    assert light[heights.argmax()] > light[heights.argmin()] + 200


def test_a_trajectory_whose_memory_was_lost_is_kept_apart(tmp_path: Path) -> None:
    def act(service: FakeService) -> None:
        send(service, 0, PATH[0])
        send(service, 1, PATH[1], epoch=1, geometry=GeometryHeader(alignment=AlignmentHeader(reason="depths differ")))
        send(service, 2, PATH[2], epoch=2, geometry=GeometryHeader(world_epoch=2))
        service.say(EndHeader(camera="robot", reason="finished"))

    with served(act) as endpoint:
        assert run_command(["trajectory", endpoint, "-o", str(tmp_path / "p.kitti.txt")]) == ExitCode.OK
    first, second = np.loadtxt(tmp_path / "p-1.kitti.txt"), np.loadtxt(tmp_path / "p.kitti.txt")
    np.testing.assert_allclose(first.reshape(-1, 3, 4), PATH[:2], atol=1e-6)
    np.testing.assert_allclose(second.reshape(-1, 3, 4), PATH[2:3], atol=1e-6)


def test_a_service_that_stops_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may come back with its memory kept; only the end of a recording ends the trajectory."""

    def act(service: FakeService) -> None:
        send(service, 0, PATH[0])
        service.say(EndHeader(camera="robot", reason="stopped"))
        service.instance = "other"
        send(service, 1, np.full((3, 4), np.nan))
        send(service, 2, PATH[2])
        service.say(EndHeader(camera="robot", reason="finished"))

    with served(act) as endpoint:
        assert run_command(["trajectory", endpoint, "-o", str(tmp_path / "p.kitti.txt")]) == ExitCode.OK
    np.testing.assert_allclose(np.loadtxt(tmp_path / "p.kitti.txt").reshape(-1, 3, 4), PATH[::2], atol=1e-6)
    said = capsys.readouterr().err
    assert "has ended (stopped); waiting for it to return" in said
    assert "(1 frames had none)" in said


@pytest.mark.parametrize(
    ("camera", "cameras", "code", "reason"),
    [
        ((), (PLAIN,), ExitCode.UNAVAILABLE, "no camera of the service publishes pose: set `outputs"),
        (("door",), (PLAIN, POSED), ExitCode.UNAVAILABLE, "camera door publishes features, not pose: set `outputs"),
        (("gate",), (PLAIN, POSED), ExitCode.USAGE, "has no camera gate; it has door, robot"),
        ((), (POSED, CameraHeader(name="b", outputs=("pose",))), ExitCode.USAGE, "name one of robot, b"),
    ],
)
def test_a_camera_without_poses_is_refused_at_once(
    tmp_path: Path,
    camera: tuple[str, ...],
    cameras: tuple[CameraHeader, ...],
    code: ExitCode,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(cameras=cameras, goes_on=False) as endpoint:
        assert run_command(["trajectory", endpoint, *camera, "-o", str(tmp_path / "p.svg")]) == code
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_cloud_needs_depths_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(cameras=(CameraHeader(name="b", outputs=("pose",)),), goes_on=False) as endpoint:
        assert run_command(["cloud", endpoint, "-o", str(tmp_path / "p.ply")]) == ExitCode.UNAVAILABLE
    assert "publishes pose and depth" in capsys.readouterr().err


def test_maps_of_another_shape_are_no_depths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What comes from the network never ends the command with a traceback."""

    def act(service: FakeService) -> None:
        send(service, 0, PATH[0], depth=np.ones((2, SIZE[1], SIZE[0])))
        service.say(EndHeader(camera="robot", reason="finished"))

    with served(act) as endpoint:
        assert run_command(["cloud", endpoint, "-o", str(tmp_path / "c.ply")]) == ExitCode.NO_INPUT
    assert "could be used: nothing was written" in capsys.readouterr().err


def test_a_service_of_an_earlier_version_is_followed(tmp_path: Path) -> None:
    """It does not say what its cameras publish."""
    with served(cameras=(CameraHeader(name="robot"),)) as endpoint:
        assert run_command(["trajectory", endpoint, "-o", str(tmp_path / "p.tum")]) == ExitCode.OK


BASE_ONLY = "import sys\nfor name in {!r}: sys.modules[name] = None\nfrom retinad.daemon.cli.app import main\nmain()"
SERVER_PARTS = ("torch", "anyio", "structlog", "cv2", "safetensors", "triton")


def test_both_commands_follow_a_service_with_the_base_install(tmp_path: Path) -> None:
    for arguments in (["trajectory", "-o", "p.svg", "-o", "p.tum.txt"], ["cloud", "-o", "p.ply"]):
        with served() as endpoint:
            command = [sys.executable, "-c", BASE_ONLY.format(SERVER_PARTS), arguments[0], endpoint, *arguments[1:]]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(30))
        assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"p.svg", "p.tum.txt", "p.ply"}


def test_a_png_without_opencv_is_refused_before_anything_is_followed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BASE_ONLY.format(SERVER_PARTS), "trajectory", "tcp://127.0.0.1:1", "-o", "p.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(30))
    assert done.returncode == ExitCode.UNAVAILABLE
    assert "a PNG needs OpenCV, which is not installed: write an .svg, which needs nothing" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_writes_the_poses_so_far(tmp_path: Path, number: int) -> None:
    def act(service: FakeService) -> None:
        send(service, 0, PATH[0])
        send(service, 1, PATH[1])

    with served(act) as endpoint:
        command = [sys.executable, "-m", "retinad.daemon", "trajectory", endpoint, "-o", str(tmp_path / "p.kitti.txt")]
        with subprocess.Popen([*command, "--save-every", "0.1"], stderr=subprocess.PIPE, text=True) as process:
            deadline_s = time.monotonic() + scaled(20)
            while not (tmp_path / "p.kitti.txt").exists() or len(np.loadtxt(tmp_path / "p.kitti.txt", ndmin=2)) < 2:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            process.send_signal(number)
            _, said = process.communicate(timeout=scaled(20))
    assert (process.returncode, "2 poses" in said) == (0, True), said


def test_ctrl_c_ends_the_wait_for_a_service_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "retinad.daemon", "cloud", "tcp://127.0.0.1:1", "-o", str(tmp_path / "p.ply")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=scaled(20))
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["trajectory", "tcp://127.0.0.1:1"], ExitCode.USAGE, "--output"),
        (["trajectory", "tcp://127.0.0.1:1", "-o", "x.ply"], ExitCode.USAGE, "ends in .svg, .png, .tum.txt"),
        (["trajectory", "udp://x", "-o", "x.svg"], ExitCode.USAGE, "an endpoint is tcp://"),
        (["trajectory", "tcp://127.0.0.1:1", "-o", "x.svg", "--client-key", "k"], ExitCode.USAGE, "belong together"),
        (["trajectory", "tcp://127.0.0.1:1", "-o", "x.svg", "--max-poses", "3"], ExitCode.USAGE, "--max-poses"),
        (["trajectory", "none", "-o", "x.svg"], ExitCode.NO_INPUT, "No such file or directory; expected an endpoint"),
        (["trajectory", ".", "robot", "-o", "x.svg"], ExitCode.USAGE, "one camera only"),
        (["cloud", "tcp://127.0.0.1:1", "-o", "x.svg"], ExitCode.USAGE, "ends in .ply"),
        (["cloud", "tcp://127.0.0.1:1", "-o", "x.ply", "--voxel", "0"], ExitCode.USAGE, "--voxel"),
        (
            ["cloud", "tcp://127.0.0.1:1", "-o", "x.ply", "--colour", "red"],
            ExitCode.USAGE,
            "expected height, confidence",
        ),
        (["cloud", "tcp://127.0.0.1:1", "-o", "x.ply", "--colour", "image"], ExitCode.USAGE, "publishes no images"),
    ],
)
def test_each_mistake_has_its_exit_code_and_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: ExitCode,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == code
    assert reason in " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    assert not list(tmp_path.iterdir())
