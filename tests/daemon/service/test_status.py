"""Every field of `status`, `end` and `hello` is rendered from the service's state."""

from dataclasses import replace
from typing import cast

from retinad.client.wire import CameraHeader, EndHeader, HelloHeader, ModelHeader, ServiceHeader, StatusHeader
from retinad.daemon.service.loop_lag import LoopLag
from retinad.daemon.service.monitor import StateMonitor
from retinad.daemon.service.state import CameraReport, ProcessState, ServiceState
from retinad.daemon.service.status import Announcer, hello_header
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig, CaptureMode
from retinad.pipeline.engine.statistics import EngineStatistics, ModelDescription
from retinad.pipeline.errors import SourceFault
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.frames import Output, OutputKind, TokenGroup, TokenOutput
from retinad.pipeline.publish import publisher
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
    published_fps=11.234,
    last_frame_age_s=0.12345,
    info=SourceInfo("ffmpeg", frame_count=200),
)


OUTPUTS = tuple(
    TokenOutput.of(layer, group, (1, 8), "bfloat16")
    for layer in (1, 3)
    for group in (TokenGroup.CAMERA, TokenGroup.POOLED)
)
GEOMETRY = (
    Output("depth", (14, 14), "float16", OutputKind.DEPTH),
    Output("pose/intrinsics", (3, 3), "float32", OutputKind.POSE),
)


class Publisher:
    """Records what is published."""

    endpoints = ("tcp://127.0.0.1:5555",)

    def __init__(self) -> None:
        self.states: list[StatusHeader] = []
        self.ends: list[EndHeader] = []

    def publish_status(self, status: StatusHeader) -> None:
        self.states.append(status)

    def publish_end(self, end: EndHeader) -> None:
        self.ends.append(end)

    def statistics(self) -> publisher.PublisherStatistics:
        return publisher.PublisherStatistics(
            sent_messages=11, sent_bytes=12, hello_messages=13, peers=14, handshake_failures=15
        )


def announcer_to(stub: Publisher, lag_s: float) -> Announcer:
    """An announcer of a service whose loop is late by so much, two seconds after its start, with one failed reload."""
    times = iter((0.0, lag_s))
    lag = LoopLag(0.0, lambda: next(times))
    lag.beat()
    lag.beat()
    clock = iter((0.0, 10.0, *[12.00049] * 9))
    monitor = StateMonitor(OUTPUTS, {}, lag, lambda: next(clock))
    real = cast("publisher.Publisher", stub)
    monitor.watch(real)
    monitor.count_reload(applied=True)
    monitor.count_reload(applied=False)
    return Announcer(real, monitor)


EXPECTED = StatusHeader(
    camera="cam1",
    state="backoff",
    reason="refused: nobody listens",
    attempt=4,
    next_try_s=1.5,
    stream_epoch=3,
    fps=29.99,
    published_fps=11.23,
    source_size=(640, 480),
    last_frame_age_s=0.123,
    captured_total=100,
    published_total=70,
    dropped_total=20,
    failed_total=7,
    in_flight=3,
    nan_total=5,
    decode_errors_total=6,
    service=ServiceHeader(
        uptime_s=2.0,
        loop_lag_ms=250.0,
        peers=14,
        sent_messages=11,
        sent_bytes=12,
        handshake_failures=15,
        reloads=2,
        reload_failures=1,
    ),
)


def test_a_status_reports_the_camera_and_the_service() -> None:
    stub = Publisher()
    announcer_to(stub, 0.25).camera_changed(STATUS, COUNTERS)
    assert stub.states == [EXPECTED]


def test_an_end_follows_a_last_status_and_accounts_for_all_frames() -> None:
    stub = Publisher()
    announcer_to(stub, 0.25).camera_ended(STATUS, COUNTERS, next_seq=70)
    assert stub.states == [EXPECTED]
    assert stub.ends == [
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


def test_a_hello_describes_the_service() -> None:
    model = ModelDescription("tiny", "random:0", ("attention", "kda"), "cpu", "float32", "dense", None, "plain", 5)
    config = CameraConfig("cam1", "synthetic:", mode=CaptureMode.LOSSLESS)
    posed = CameraConfig("cam2", "synthetic:", outputs=(OutputKind.POSE,))
    state = ServiceState(
        versions={"retinad": "1.2", "torch": "2"},
        outputs=(*OUTPUTS, *GEOMETRY),
        endpoints=("tcp://127.0.0.1:5555",),
        model=model,
        process=ProcessState(uptime_s=1.5, reloads=3),
        engine=EngineStatistics(),
        cameras=(CameraReport(config, STATUS, COUNTERS, 4), CameraReport(posed, STATUS, COUNTERS, 4)),
        totals=COUNTERS,
    )
    hello = HelloHeader(
        version="1.2",
        versions={"retinad": "1.2", "torch": "2"},
        models=(ModelHeader(name="tiny", weights="random:0", mixers=("attention", "kda")),),
        cameras=(
            CameraHeader(name="cam1", mode="lossless", state="backoff", outputs=("features", "depth", "pose")),
            CameraHeader(name="cam2", mode="live", state="backoff", outputs=("pose",)),
        ),
        layers=(1, 3),
        tokens=("camera", "pooled"),
        dtype="bf16",
        outputs=("layer1/camera", "layer1/pooled", "layer3/camera", "layer3/pooled", "depth", "pose/intrinsics"),
        service=ServiceHeader(uptime_s=1.5, reloads=3),
    )
    assert hello_header(state) == hello
    assert hello_header(replace(state, model=None)).models == ()
