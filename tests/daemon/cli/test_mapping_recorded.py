"""`retinad trajectory` and `retinad cloud` of an extraction have its poses, depths and pictures."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import cv2
import numpy as np
import pytest
from rich.console import Console

from retinad.daemon.cli.app import run_command
from retinad.daemon.config.job import load_job_config
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.extract.index import Form
from retinad.daemon.extract.job import extract
from retinad.daemon.extract.progress import Reporter
from retinad.daemon.extract.request import Extraction
from retinad.pipeline.engine import open as engine_open
from retinad.pipeline.frames import OutputKind

from ..mapping.ply_reader import read_ply
from ..room import FIELD, HIGH, LOW, WALK, AllKnowingEngine, camera_matrix, look, paint, pixels_of, world_points
from ..service_rig import write_config


def room_job(folder: Path, form: Form, **output: object) -> Extraction:
    """An extraction of pictures of the drawn room."""
    (folder / "frames").mkdir()
    matrix = camera_matrix(112, 84)
    for number, step in enumerate(WALK):
        picture = np.rint(paint(world_points(step.pose, matrix, pixels_of(112, 84)))).astype(np.uint8)
        assert cv2.imwrite(str(folder / "frames" / f"{number}.png"), picture[..., ::-1])
    settings = load_job_config(write_config(folder, ""), (), {})
    model = replace(
        settings.model,
        image_width=112,
        network=replace(settings.model.network, depth=4),
        outputs=(OutputKind.POSE, OutputKind.DEPTH),
        output=replace(settings.model.output, **output),  # type: ignore[arg-type]  # a test's own keys
    )
    stream = replace(settings.stream, scale_frames=1)
    return Extraction(str(folder / "frames"), folder / "out", model, stream, form=form, shard_frames=2)


@pytest.fixture
def extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Extracts the drawn room with true poses and depths."""

    def run(form: Form = "safetensors", **output: object) -> Path:
        monkeypatch.setattr(engine_open, "open_engine", AllKnowingEngine)
        job = room_job(tmp_path, form, **output)
        assert anyio.run(extract, job, Reporter(Console(file=io.StringIO()), None), "0") is ExitCode.OK
        return job.out

    return run


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_a_trajectory_of_an_extraction_has_its_poses(
    tmp_path: Path, extracted: Callable[..., Path], form: Form, capsys: pytest.CaptureFixture[str]
) -> None:
    out = extracted(form)
    outputs = ["-o", str(tmp_path / "p.kitti.txt"), "-o", str(tmp_path / "p.tum.txt")]
    assert run_command(["trajectory", str(out / "index.json"), *outputs]) == ExitCode.OK
    kitti = np.loadtxt(tmp_path / "p.kitti.txt").reshape(-1, 3, 4)
    np.testing.assert_allclose(kitti, [step.pose for step in WALK], atol=1e-6)
    assert np.loadtxt(tmp_path / "p.tum.txt").shape == (len(WALK), 8)
    assert (
        f"5 poses, a path of {np.linalg.norm(np.diff(kitti[:, :, 3], axis=0), axis=1).sum():.4g}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("form", "every"), [("safetensors", 1), ("npz", 1), ("safetensors", 2)])
def test_a_cloud_of_an_extraction_is_the_room_in_its_colours(
    tmp_path: Path, extracted: Callable[..., Path], form: Form, every: int
) -> None:
    """With `map_every`, shards with depths and shards without alternate."""
    out = extracted(form, map_every=every)
    arguments = ["cloud", str(out), "-o", str(tmp_path / "c.ply"), "--voxel", "0.05", "--colour", "image"]
    assert run_command(arguments) == ExitCode.OK
    rows, comments = read_ply(tmp_path / "c.ply")
    assert comments[-1] == f"frames {len(range(0, len(WALK), every))}"
    points = np.array([[row["x"], row["y"], row["z"]] for row in rows])
    off_wall = np.minimum(np.abs(points - LOW), np.abs(points - HIGH)).min(axis=1)
    assert off_wall.max() < 11 * 2**-11, "float16 depth of at most 11 units"
    assert len(points) > 3000
    assert np.ptp(points[:, 0]) > 5, "several walls are seen"
    colours = np.array([[row["red"], row["green"], row["blue"]] for row in rows])
    # Depth moves a point along its ray by 0.005 at most; the paint changes by 270 a unit at most.
    assert np.abs(colours - paint(points)).max() < 0.5 + 270 * 0.0055


def test_a_map_stride_of_an_extraction_is_respected(tmp_path: Path, extracted: Callable[..., Path]) -> None:
    out = extracted(map_stride=4)
    arguments = ["cloud", str(out), "-o", str(tmp_path / "c.ply"), "--voxel", "1e-4", "--frames", "1"]
    assert run_command(arguments) == ExitCode.OK
    rows, _ = read_ply(tmp_path / "c.ply")
    step, matrix = WALK[0], camera_matrix(112, 84)
    expected = world_points(step.pose, matrix, pixels_of(112, 84)[::4, ::4]).reshape(-1, 3)
    found = np.array([[row["x"], row["y"], row["z"]] for row in rows])
    assert len(found) == len(expected)
    apart = np.linalg.norm(found[:, None] - expected[None], axis=-1).min(axis=1)
    depth, _ = look(step.pose, matrix, pixels_of(112, 84))
    assert apart.max() < 2 * depth.max() * 2**-11


def test_an_extraction_without_poses_says_how_to_get_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, "")
    scene = "synthetic:?width=64&height=48&frames=3"
    assert run_command(["extract", scene, "-o", str(tmp_path / "out"), "-c", str(config)]) == ExitCode.OK
    assert run_command(["cloud", str(tmp_path / "out"), "-o", str(tmp_path / "c.ply")]) == ExitCode.NO_INPUT
    assert 'holds no pose and no depth: set `outputs = ["pose", "depth"]`' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("index", "cannot be read"),
        ("shard", "cannot be read"),
        ("elsewhere", "not a file name"),
        ("schema", "format 9"),
    ],
)
def test_a_damaged_extraction_is_named(
    tmp_path: Path, extracted: Callable[..., Path], damage: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = extracted()
    index = out / "index.json"
    content = json.loads(index.read_text())
    shard = out / content["shards"][1]["file"]
    match damage:
        case "index":
            index.write_text("{")
        case "shard":
            shard.write_bytes(shard.read_bytes()[:100])
        case "elsewhere":
            index.write_text(index.read_text().replace(shard.name, f"../{shard.name}"))
        case "schema":
            index.write_text(json.dumps(content | {"schema": 9}))
    assert run_command(["trajectory", str(out), "-o", str(tmp_path / "p.svg")]) == ExitCode.NO_INPUT
    assert reason in capsys.readouterr().err


def test_a_recording_that_has_changed_gives_no_colours(
    tmp_path: Path, extracted: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = extracted()
    arguments = ["cloud", str(out), "-o", str(tmp_path / "c.ply"), "--colour", "image"]
    cv2.imwrite(str(tmp_path / "frames" / "0.png"), np.zeros((10, 20, 3), np.uint8))
    assert run_command(arguments) == ExitCode.NO_INPUT
    assert "is 20x10, but it was 112x84 when it was extracted" in capsys.readouterr().err
    for path in (tmp_path / "frames").iterdir():
        path.unlink()
    assert run_command(arguments) == ExitCode.NO_INPUT
    assert "cannot be read" in capsys.readouterr().err


def test_the_field_of_view_of_the_room_is_wide_enough_to_overlap() -> None:
    """Or tests of two frames would compare nothing."""
    assert np.degrees(FIELD[0]) > 2 * np.abs(np.diff([step.yaw for step in WALK])).max()
