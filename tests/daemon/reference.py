"""What the service should publish: features from the engine alone, without the service around it."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from retinad.daemon.config.load import load_config
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features, Frame, FrameStamp, Outcome


def engine_features(config: Path, paths: Sequence[Path]) -> list[Features]:
    """The features of image files, in one stream, with the model and the first camera of a config."""
    loaded = load_config(config, {})
    outcomes: list[Outcome] = []
    with Engine(loaded.model) as engine:
        engine.open_stream("direct", loaded.cameras[0].stream, loaded.cameras[0].resize)
        for number, path in enumerate(paths):
            pixels = cv2.imread(str(path))
            assert pixels is not None
            stamp = FrameStamp("direct", 0, number, 0, 0, None, (pixels.shape[1], pixels.shape[0]))
            outcomes += engine.step([Frame(stamp, pixels.astype(np.uint8, copy=False))])
        outcomes += engine.flush("direct")
    features = [outcome for outcome in outcomes if isinstance(outcome, Features)]
    assert len(features) == len(outcomes)
    return features
