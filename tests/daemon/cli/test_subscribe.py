"""`retinad subscribe` prints lines for people and programs, writes whole files, and ends with the right exit code."""

import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from retinad.client.record import FeaturesRecord, make_record
from retinad.client.wire import (
    AlignmentHeader,
    CameraHeader,
    EndHeader,
    FeaturesHeader,
    GeometryHeader,
    HelloHeader,
    ModelHeader,
    StatusHeader,
    TensorHeader,
    decode,
    encode,
    encode_features,
)
from retinad.daemon.cli.messages import HINT_INTERVAL_S, file_name, print_messages, text_line
from retinad.daemon.exit_codes import ExitCode

from ...client.posed import depth_of_wall, posed_message


def features(seq: int, camera: str = "cam1", instance: str = "a1") -> list[bytes]:
    header = FeaturesHeader(
        camera=camera,
        instance=instance,
        stream_epoch=0,
        seq=seq,
        source_seq=seq,
        capture_unix_ns=1,
        capture_monotonic_ns=1,
        publish_unix_ns=1,
        epoch=0,
        epoch_frame=seq,
        keyframe=True,
        flags=("random_weights",),
        source_size=(640, 480),
        model_size=(518, 392),
        grid=(28, 37),
        to_source=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
        model=ModelHeader(name="tiny", weights="random:0"),
        tensors=(TensorHeader(name="layer3/patch", dtype="<f2", shape=(2, 3), nbytes=12, layer=3, group="patch"),),
    )
    return [bytes(part) for part in encode_features(header, [memoryview(bytes(12))])]


def plain(header: StatusHeader | EndHeader | HelloHeader) -> list[bytes]:
    return [bytes(part) for part in encode(header)]


@contextmanager
def published(*messages: list[bytes]) -> Iterator[str]:
    """An endpoint that sends these messages once there is a subscriber."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as opened:
        opened.setsockopt(zmq.LINGER, 1000)
        opened.bind("tcp://127.0.0.1:0")
        endpoint = opened.getsockopt_string(zmq.LAST_ENDPOINT)

        def publish() -> None:
            if opened.poll(5000):
                time.sleep(0.2)  # for all of its subscriptions
                for message in messages:
                    opened.send_multipart(message)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield endpoint
        finally:
            thread.join()


@pytest.mark.parametrize(
    ("expected", "words"), [(None, "captured 9"), (12, "captured 9 of 12"), (4, "captured 9 in passes of 4")]
)
def test_a_looped_source_is_shown_with_its_passes(expected: int | None, words: str) -> None:
    end = EndHeader(camera="cam1", reason="stopped", captured_total=9, published_total=9, expected_total=expected)
    with published(plain(end)) as endpoint:
        output = io.StringIO()
        print_messages(endpoint=endpoint, count=1, timeout_s=5, output=output)
    assert f"  {words}  published 9" in output.getvalue()


def test_each_message_is_a_line_and_each_record_a_whole_file(tmp_path: Path) -> None:
    end = plain(EndHeader(camera="cam1", reason="finished", captured_total=3, published_total=3, expected_total=3))
    output = io.StringIO()
    with published(features(0), features(2), end) as endpoint:
        code = print_messages(endpoint=endpoint, count=3, timeout_s=5, save=tmp_path / "new" / "folder", output=output)
    assert code == ExitCode.OK
    first, second, third = output.getvalue().splitlines()
    assert first == "features  cam1  seq 0  640x480  0.0 ms old  1 tensor, 0.000 MB  random_weights"
    assert second.endswith("random_weights  [wire_loss 1]")
    assert third == "end  cam1  finished  captured 3 of 3  published 3  dropped 0  failed 0"
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.name for file in files] == ["cam1-a1-0000-00000000.npz", "cam1-a1-0000-00000002.npz"]
    with np.load(files[1]) as saved:
        assert saved["layer3/patch"].shape == (2, 3)


def test_json_lines_hold_the_header(tmp_path: Path) -> None:
    output = io.StringIO()
    with published(features(7), plain(HelloHeader(version="1"))) as endpoint:
        kinds = ("features", "hello")
        assert print_messages(endpoint=endpoint, kinds=kinds, count=2, timeout_s=5, as_json=True, output=output) == 0
    record, hello = map(json.loads, output.getvalue().splitlines())
    assert (record["kind"], record["seq"], record["gaps"]) == ("features", 7, [])
    assert record["tensors"][0]["name"] == "layer3/patch"
    assert (hello["kind"], hello["version"]) == ("hello", "1")


def test_only_the_requested_cameras_are_printed() -> None:
    output = io.StringIO()
    with published(features(0, "cam10"), features(0, "cam1")) as endpoint:
        assert print_messages(endpoint=endpoint, cameras=("cam1",), count=1, timeout_s=5, output=output) == 0
    assert output.getvalue().startswith("features  cam1  ")


def test_silence_ends_with_69_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_messages(endpoint="tcp://127.0.0.1:1", timeout_s=0.1) == ExitCode.UNAVAILABLE
    assert "retinad: no message from tcp://127.0.0.1:1 in 0.1 s: not connected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("endpoint", "cameras", "kinds"),
    [
        ("nonsense", (), ()),
        ("tcp://127.0.0.1:1", ("a/b",), ()),
        ("tcp://127.0.0.1:1", (), ("feature",)),
        ("tcp://x", (), ()),
    ],
)
def test_an_invalid_subscription_is_a_usage_error(
    endpoint: str, cameras: tuple[str, ...], kinds: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_messages(endpoint=endpoint, cameras=cameras, kinds=kinds) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("retinad: ")


def test_a_service_of_another_version_ends_with_69(capsys: pytest.CaptureFixture[str]) -> None:
    newer = [b"features/cam1/", msgspec.msgpack.encode({"schema": 2})]
    with published(*[newer] * 20) as endpoint:
        assert print_messages(endpoint=endpoint, timeout_s=5) == ExitCode.UNAVAILABLE
    assert capsys.readouterr().err.count("update retinad") == 10


def test_a_folder_that_cannot_be_created_ends_with_69(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert print_messages(endpoint="tcp://127.0.0.1:1", save=tmp_path / "file") == ExitCode.UNAVAILABLE
    assert "file" in capsys.readouterr().err


def test_what_cannot_be_saved_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(record: FeaturesRecord, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FeaturesRecord, "save_npz", refuse)
    with published(features(0)) as endpoint:
        assert print_messages(endpoint=endpoint, timeout_s=5, save=tmp_path) == ExitCode.IO_ERROR
    assert f"{tmp_path}/cam1-a1-0000-00000000.npz cannot be written: No space left" in capsys.readouterr().err
    (tmp_path / "file").touch()
    print_messages(endpoint="tcp://127.0.0.1:1", save=tmp_path / "file")
    print_messages(endpoint="tcp://127.0.0.1:1", save=tmp_path / "file" / "below")
    printed = capsys.readouterr().err
    assert f"{tmp_path}/file exists and is not a folder" in printed
    assert f"the folder {tmp_path}/file/below cannot be created: Not a directory" in printed
    assert "Errno" not in printed


class FullOutput(io.StringIO):
    """A disk without room."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_standard_output_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with published(features(0)) as endpoint:
        assert print_messages(endpoint=endpoint, timeout_s=5, output=FullOutput()) == ExitCode.IO_ERROR
    assert "standard output cannot be written: No space left" in capsys.readouterr().err


def test_saving_has_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with published(*map(features, range(5))) as endpoint:
        code = print_messages(endpoint=endpoint, timeout_s=5, save=tmp_path, save_limit_gb=300e-9)
    assert code == ExitCode.IO_ERROR
    assert "raise --save-limit" in capsys.readouterr().err
    assert 1 <= len(list(tmp_path.iterdir())) < 5


def test_a_closed_pipe_is_not_an_error() -> None:
    """As in `retinad subscribe ... | head -1`."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with published(features(0)) as endpoint:
        assert print_messages(endpoint=endpoint, timeout_s=5, output=Gone()) == ExitCode.OK


def test_no_text_from_the_network_steers_the_terminal_or_leaves_the_folder() -> None:
    status = make_record(decode(plain(StatusHeader(camera="cam1", state="\x1b[2J", reason="a\nb"))))
    assert text_line(status) == "status  cam1  ?[2J  a?b  published 0  dropped 0  failed 0"
    record = make_record(decode(features(0, instance="../../etc/x\n")))
    assert isinstance(record, FeaturesRecord)
    assert file_name(record) == "cam1-______etc_x_-0000-00000000.npz"


def test_each_kind_has_a_readable_line() -> None:
    status = StatusHeader(camera="cam1", state="backoff", reason="refused", next_try_s=1.25, fps=9.96)
    hello = HelloHeader(
        version="0.1",
        models=(ModelHeader(name="tiny", weights="random:0"),),
        cameras=(CameraHeader(name="cam1", state="running"),),
        outputs=("layer3/patch", "depth"),
    )
    assert [text_line(make_record(decode(plain(each)))) for each in (status, hello)] == [
        "status  cam1  backoff  refused  next try in 1.2 s  10.0 frames/s  published 0  dropped 0  failed 0",
        "hello  retinad 0.1  model tiny random:0  cameras cam1 (running)  outputs layer3/patch, depth",
    ]


def test_a_status_line_has_both_rates_and_says_overload() -> None:
    words = "overloaded: 5.1 of 20.0 frames/s are published, the rest is dropped"
    status = StatusHeader(camera="cam1", state="running", fps=20.0, published_fps=5.11, overload=words)
    line = text_line(make_record(decode(plain(status))))
    assert line.startswith(f"status  cam1  running  source 20.0 frames/s  published 5.1 frames/s  {words}  published 0")


def posed_line(**changes: Any) -> str:
    """What is printed between the tensors and the flags."""
    record = make_record(decode(posed_message("a1", "cam1", 3, **changes)))
    return text_line(record).partition(" MB")[2].removesuffix("  reset  warmup")


def test_a_line_says_where_the_camera_is_and_where_it_looks() -> None:
    """A camera turned 90 degrees to the right, then one that looks upwards: y is down."""
    right = np.array([[0.0, 0, 1, 0.5], [0, 1, 0, -0.25], [-1, 0, 0, 12.34567]])
    up = np.array([[1.0, 0, 0, 0], [0, 0.5, -(0.75**0.5), 0], [0, 0.75**0.5, 0.5, 0]])
    wall = depth_of_wall(np.eye(3, 4))
    assert posed_line() == "  at 0 0 3 (unit: stream)  yaw 0.0 pitch 0.0 deg  depth 5 (confidence 3)"
    assert posed_line(pose=right, depth=wall, without=("depth_confidence",)) == (
        "  at 0.5 -0.25 12.35 (unit: stream)  yaw 90.0 pitch 0.0 deg  depth 8"
    )
    assert posed_line(pose=up, without=("depth", "depth_confidence")) == (
        "  at 0 0 0 (unit: stream)  yaw 0.0 pitch 60.0 deg"
    )


def test_a_line_says_what_is_unknown() -> None:
    nothing = np.full(depth_of_wall(np.eye(3, 4)).shape, np.nan)
    doubtful = GeometryHeader(unit="metre", alignment=AlignmentHeader(reason="depths differ"))
    assert posed_line(pose=np.full((3, 4), np.nan), depth=nothing) == "  no pose  no depth"
    assert posed_line(without=("pose/world_from_camera",), geometry=doubtful) == (
        "  depth 5 (confidence 3)  [bad alignment: depths differ]"
    )


def test_poses_and_depths_are_saved(tmp_path: Path) -> None:
    message = [bytes(part) for part in posed_message("a1", "cam1", 3)]
    with published(message) as endpoint:
        assert print_messages(endpoint=endpoint, count=1, timeout_s=5, save=tmp_path, output=io.StringIO()) == 0
    with np.load(tmp_path / "cam1-a1-0000-00000003.npz") as saved:
        np.testing.assert_array_equal(saved["pose/world_from_camera"], [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 3]])
        assert (saved["depth"] == 5).all()
        assert json.loads(str(saved["header.json"]))["geometry"]["unit"] == "stream"


def test_the_command_needs_the_base_install_only() -> None:
    heavy = ("torch", "cv2", "anyio", "pydantic", "structlog")
    code = f"import sys, retinad.daemon.cli.messages; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout == b"[]\n"


def test_a_service_that_encrypts_is_named_before_the_hint_about_silence() -> None:
    """Within 2 s; a service that is only silent is mentioned after 10 s."""
    _, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.XPUB) as service:
        service.setsockopt(zmq.LINGER, 0)
        service.curve_server, service.curve_secretkey = True, secret
        service.bind("tcp://127.0.0.1:0")
        command = [sys.executable, "-m", "retinad.daemon", "subscribe", service.getsockopt_string(zmq.LAST_ENDPOINT)]
        begun_s = time.monotonic()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
            assert program.stderr is not None
            line = program.stderr.readline()
            took_s = time.monotonic() - begun_s
            program.kill()
    assert "The service encrypts, and this client has no CURVE keys" in line
    assert "--client-key and --server-key" in line
    assert took_s < HINT_INTERVAL_S
