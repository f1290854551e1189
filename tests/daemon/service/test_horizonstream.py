"""The service with the preset `horizonstream`, small: metric poses from camera to subscriber, across a restart."""

from pathlib import Path

import numpy as np

from retinad.client import FeaturesRecord, Record

from ...deadlines import scaled
from ..records import features_of, is_end, record_of
from ..reference import engine_features
from ..service_rig import camera, receive_until, running, subscriber, write_config, write_frames

MODEL = """
heads = 1
depth = 24
patch_embed = "conv"
layers = [23]
tokens = ["scale"]
outputs = ["features", "pose"]
"""
STREAM = "\n[stream]\nwindow = 3\n"


def config_of(folder: Path, cameras: str) -> Path:
    """A config of the preset, with as few channels as its camera head allows."""
    path = write_config(folder, cameras, service="keep_state = true")
    head, _, _ = path.read_text().partition("[model]")
    model = f'[model]\npreset = "horizonstream"\ndevice = "cpu"\nimage_width = 56\nchannels = 32\n{MODEL}'
    path.write_text(f"{head}{model}{STREAM}{cameras}")
    return path


def play_until(config: Path, seq: int) -> list[FeaturesRecord]:
    """Run the service until a record with this number, then stop it: all its records."""
    with subscriber(config.parent) as records_in, running(config) as service:
        records: list[Record] = receive_until(records_in, record_of("a", at_least=seq))
        code, took_s = service.stop()
        assert (code, took_s < scaled(3.0)) == (0, True)
        records += receive_until(records_in, is_end)
    (config.parent / "notify.sock").unlink()
    return features_of(records, "a")


def test_a_restart_with_kept_state_continues_one_metric_trajectory(tmp_path: Path) -> None:
    """The numbers are those of the engine alone, fed with the same images without a stop."""
    paths = write_frames(tmp_path / "images", 60)
    config = config_of(tmp_path, camera("a", tmp_path / "images", mode="lossless", fps=10))
    before = play_until(config, 4)
    after = play_until(config, 3)
    expected = engine_features(config, [*paths[: len(before)], *paths[: len(after)]])
    for record, other in zip([*before, *after], expected, strict=True):
        assert (record.epoch, record.epoch_frame) == (other.epoch, other.epoch_frame)
        assert record.geometry is not None
        assert (record.geometry.unit, record.geometry.world_epoch) == ("metre", 0)
        assert np.isfinite(record.world_from_camera).all()
        for tensor in other.tensors:
            np.testing.assert_array_equal(record[tensor.name], tensor.data)
    np.testing.assert_allclose(before[0].world_from_camera.astype(np.float64), np.eye(3, 4), atol=1e-6)
    assert after[0].epoch_frame == len(before)
