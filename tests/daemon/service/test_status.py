"""Every field of `status`, `end` and `hello` comes from the part of the service that knows it."""

from retinad.client.wire import CameraHeader, EndHeader, HelloHeader, ModelHeader, StatusHeader
from retinad.daemon.service.cameras import CameraReport
from retinad.daemon.service.loop_lag import LoopLag
from retinad.daemon.service.status import Announcer, Description, model_header
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig, CaptureMode
from retinad.pipeline.engine.statistics import ModelDescription
from retinad.pipeline.errors import SourceFault
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.frames import TokenGroup, TokenOutput
from retinad.pipeline.sources.reader import SourceInfo

COUNTERS = FrameCounters(captured=100, published=70, dropped=20, failed=7, nan=5, decode_errors=6)
STATUS = CameraStatus(
    "cam1",
    CameraState.BACKOFF,
    fault=SourceFault.REFUSED,
    reason="nobody listens",
    attempt=4,
    next_try_s=1.5,
    stream_epoch=3,
    size=(640, 480),
    fps=29.987,
    last_frame_age_s=0.12345,
    info=SourceInfo("ffmpeg", frame_count=200),
)


class Publisher:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.states: list[tuple[StatusHeader, float]] = []
        self.ends: list[EndHeader] = []

    def publish_status(self, status: StatusHeader, *, loop_lag_ms: float = 0.0) -> None:
        self.states.append((status, loop_lag_ms))

    def publish_end(self, end: EndHeader) -> None:
        self.ends.append(end)


def late_by(seconds: float) -> LoopLag:
    times = iter((0.0, seconds))
    lag = LoopLag(0.0, lambda: next(times))
    lag.beat()
    lag.beat()
    return lag


EXPECTED = StatusHeader(
    camera="cam1",
    state="backoff",
    reason="refused: nobody listens",
    attempt=4,
    next_try_s=1.5,
    stream_epoch=3,
    fps=29.99,
    source_size=(640, 480),
    last_frame_age_s=0.123,
    captured_total=100,
    published_total=70,
    dropped_total=20,
    failed_total=7,
    in_flight=3,
    nan_total=5,
    decode_errors_total=6,
)


def test_a_status_says_how_the_camera_is() -> None:
    publisher = Publisher()
    Announcer(publisher, late_by(0.25)).camera_changed(STATUS, COUNTERS)  # type: ignore[arg-type]
    assert publisher.states == [(EXPECTED, 250.0)]


def test_an_end_comes_after_a_last_status_and_says_what_became_of_the_frames() -> None:
    publisher = Publisher()
    Announcer(publisher, late_by(0.0)).camera_ended(STATUS, COUNTERS, next_seq=70)  # type: ignore[arg-type]
    assert publisher.states == [(EXPECTED, 0.0)]
    assert publisher.ends == [
        EndHeader(
            camera="cam1",
            reason="stopped",
            stream_epoch=3,
            next_seq=70,
            captured_total=100,
            published_total=70,
            dropped_total=20,
            failed_total=7,
            expected_total=200,
        )
    ]


def test_a_hello_says_what_there_is() -> None:
    groups = (TokenGroup.CAMERA, TokenGroup.POOLED)
    outputs = [TokenOutput.of(layer, group, (1, 8), "bfloat16") for layer in (1, 3) for group in groups]
    description = Description(outputs, {"retinad": "1.2", "torch": "2"})
    model = ModelDescription("tiny", "random:0", ("attention", "kda"), "cpu", "float32", "dense", None, "plain", 5)
    description.models = (model_header(model),)
    config = CameraConfig("cam1", "synthetic:", mode=CaptureMode.LOSSLESS)
    description.cameras = lambda: [CameraReport(config, STATUS, COUNTERS, 4)]
    assert description() == HelloHeader(
        version="1.2",
        versions={"retinad": "1.2", "torch": "2"},
        models=(ModelHeader(name="tiny", weights="random:0", mixers=("attention", "kda")),),
        cameras=(CameraHeader(name="cam1", mode="lossless", state="backoff"),),
        layers=(1, 3),
        tokens=("camera", "pooled"),
        dtype="bf16",
    )
