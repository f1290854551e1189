"""Every key reaches the pipeline; every error has its key and place, and shows no secret."""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinad.daemon.config.load import ConfigError, LogConfig, Problem, ServiceConfig, load_config
from retinad.daemon.config.show import show_config
from retinad.daemon.config.tables import (
    CameraTable,
    CurveTable,
    ModelTable,
    PublishTable,
    ServiceTable,
    StreamTable,
)
from retinad.pipeline.config import (
    CameraConfig,
    CaptureMode,
    CurveConfig,
    ModelConfig,
    NetworkConfig,
    OutputConfig,
    PublishConfig,
    ResizeMode,
    RetentionConfig,
    StreamConfig,
)
from retinad.pipeline.engine.preprocess import resize_geometry
from retinad.pipeline.engine.token_shape import TokenShape
from retinad.pipeline.errors import ModelError
from retinad.pipeline.frames import OutputKind, TokenGroup
from retinad.pipeline.geometry.masks import counts_of
from retinad.pipeline.model.presets import LINGBOT_MAP, TINY
from retinad.pipeline.model.weight_paths import ZIP_START
from retinad.pipeline.view_config import KnownDistance, Mask, ViewConfig

ROOT = Path(__file__).parents[3]
CAMERA = '[[camera]]\nname = "a"\nsource = "synthetic:"\n'
SECRET = "s3cret"
SECRET_SOURCE = f"rtsp://admin:{SECRET}@127.0.0.1:9/x?password={SECRET}2"

Load = Callable[..., ServiceConfig]
Refuse = Callable[..., tuple[Problem, ...]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str, env: Mapping[str, str] | None = None) -> ServiceConfig:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return load_config(path, env or {})

    return load_text


@pytest.fixture
def refuse(load: Load) -> Refuse:
    def problems(text: str, env: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            load(text, env)
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(caught.value.problems)
        return caught.value.problems

    return problems


def write_key(path: Path, key: str = "0" * 40) -> None:
    path.write_text(f'curve\n    public-key = "{key}"\n    secret-key = "{key}"\n')


# Values


def test_a_config_with_one_camera_is_the_defaults(load: Load) -> None:
    config = load(CAMERA + '[model]\ndevice = "cpu"\n', {"RUNTIME_DIRECTORY": "/run/retinad", "STATE_DIRECTORY": "/s"})
    assert config == ServiceConfig(
        log=LogConfig(),
        state_dir=Path("/s"),
        keep_state=False,
        keep_state_timeout_s=30.0,
        keep_state_max_age_s=None,
        runtime_dir=Path("/run/retinad"),
        exit_when_done=True,
        publish=PublishConfig(endpoints=("ipc:///run/retinad/features.sock", "tcp://127.0.0.1:5555")),
        model=ModelConfig("tiny", TINY.network, TINY.image_width, output=OutputConfig(TINY.layers)),
        cameras=(CameraConfig("a", "synthetic:", stream=TINY.stream),),
        secrets=frozenset(),
    )


def test_the_default_file_documents_every_key_with_its_true_default(tmp_path: Path) -> None:
    text = (ROOT / "config.toml").read_text()
    spelt_out = tmp_path / "config.toml"
    spelt_out.write_text(re.sub(r"(?m)^#(?=[a-z])", "", text) + "\n[model.x]\n")
    with pytest.raises(ConfigError, match=r"model\.x: unknown key"):  # the lines really are keys of their tables
        load_config(spelt_out, {})
    spelt_out.write_text(re.sub(r"(?m)^#(?=[a-z])", "", text))
    assert load_config(spelt_out, {}) == load_config(ROOT / "config.toml", {})
    for table in (ServiceTable, PublishTable, CurveTable, ModelTable, StreamTable, CameraTable):
        for key in table.model_fields:
            assert re.search(rf"\b{key}\b", text), f"{table.__name__}.{key} is not in config.toml"


@pytest.mark.parametrize("ratio", ["16:9", "4:3", "1:1"])
def test_the_default_file_states_the_memory_of_a_camera_correctly(ratio: str) -> None:
    network, width, height = LINGBOT_MAP.network, *map(int, ratio.split(":"))
    grid = resize_geometry(
        (120 * width, 120 * height), ResizeMode.CROP, LINGBOT_MAP.image_width, network.patch_size
    ).grid
    layout = TokenShape.of(network, grid).layout(LINGBOT_MAP.stream)
    # Keys and values of every layer, in bfloat16.
    taken_bytes = layout.pages * layout.frame_tokens * network.depth * 2 * network.channels * 2
    text = " ".join(line.removeprefix("# ") for line in (ROOT / "config.toml").read_text().splitlines())
    (said,) = re.findall(rf"([0-9.]+) GiB(?: of a GPU's memory)? at {ratio}", text)
    assert said == f"{taken_bytes / 2**30:.1f}"


@pytest.mark.parametrize(
    ("config", "table", "elsewhere"),
    [
        (CameraConfig, CameraTable, {"view"}),
        (StreamConfig, StreamTable, {"retention"}),
        (RetentionConfig, StreamTable, set()),
        (NetworkConfig, ModelTable, {"camera_head", "dense_head", "horizon"}),
        (OutputConfig, ModelTable, set()),
        (ModelConfig, ModelTable, {"name", "network", "output"}),
        (PublishConfig, PublishTable, set()),
        (CurveConfig, CurveTable, set()),
    ],
)
def test_every_field_of_the_pipeline_can_be_set(config: type, table: type, elsewhere: set[str]) -> None:
    assert {field.name for field in fields(config)} - elsewhere <= set(table.model_fields)  # type: ignore[attr-defined]


def test_every_key_reaches_the_pipeline(load: Load, tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(ZIP_START)
    write_key(tmp_path / "server.key_secret")
    config = load(
        f"""
        [service]
        log_level = "debug"
        log_format = "json"
        state_dir = "/state"
        exit_when_done = false
        keep_state = true
        keep_state_timeout_s = 60
        keep_state_max_age_s = 3600.0
        [publish]
        endpoints = ["tcp://0.0.0.0:6000", "ipc://{{runtime}}/x"]
        buffer_mb = 128
        heartbeat_s = 1
        allow_plaintext = true
        curve = {{ server_secret_key_file = "{tmp_path}/server.key_secret", authorized_keys_dir = "{tmp_path}" }}
        [model]
        preset = "lingbot-map"
        checkpoint = "{tmp_path}/weights.pt"
        seed = 3
        device = "cpu"
        dtype = "bfloat16"
        memory_dtype = "float8_e4m3fn"
        attention = "dense"
        execution = "fused"
        flashinfer_kernels = "fa2"
        max_batch = 2
        max_streams = 3
        image_width = 64
        outputs = ["pose", "features"]
        map_stride = 2
        min_confidence = 1.5
        map_every = 4
        layers = [0, 2]
        tokens = ["pooled", "scale"]
        pool = 2
        output_dtype = "float32"
        channels = 128
        heads = 2
        depth = 3
        mlp_ratio = 2
        patch_size = 8
        patch_embed = "conv"
        register_tokens = 2
        rope3d = false
        mixers = ["kda"]
        [stream]
        scale_frames = 2
        window = 5
        keyframe_interval = 3
        history_frames = 0
        epoch_frames = 40
        run_frames = 4
        carry_state = true
        cross_frame_special = false
        camera_only = true
        include_scale_frames = false
        [[camera]]
        name = "door-1"
        source = 0
        mode = "lossless"
        fps = 12.5
        loop = 0
        resize = "pad"
        queue_frames = 7
        connect_timeout_s = 1.5
        stall_timeout_s = 2.5
        retry = false
        transport = "udp"
        size = [1280, 720]
        fourcc = "MJPG"
        crop = [1, 2, 30, 40]
        enabled = true
        outputs = ["pose"]
        stream = {{ window = 9 }}
    """,
        {"XDG_RUNTIME_DIR": "/run/user/7"},
    )
    stream = StreamConfig(2, 9, 3, 0, RetentionConfig(False, True, False), 40, 4, True)
    camera = CameraConfig(
        "door-1",
        "0",
        CaptureMode.LOSSLESS,
        12.5,
        0,
        ResizeMode.PAD,
        7,
        1.5,
        2.5,
        False,
        "udp",
        (1280, 720),
        "MJPG",
        stream,
        True,
        (1, 2, 30, 40),
        (OutputKind.POSE,),
    )
    network = NetworkConfig(128, 2, 3, 2.0, 8, "conv", 2, False, ("kda",))
    output = OutputConfig((0, 2), (TokenGroup.POOLED, TokenGroup.SCALE), 2, "float32", 2, 1.5, 4)
    assert config.cameras == (camera,)
    assert config.model == ModelConfig(
        "lingbot-map",
        network,
        64,
        tmp_path / "weights.pt",
        None,
        3,
        "cpu",
        "bfloat16",
        "float8_e4m3fn",
        "dense",
        "fused",
        "fa2",
        output,
        2,
        3,
        outputs=(OutputKind.POSE, OutputKind.FEATURES),
    )
    curve = CurveConfig(tmp_path / "server.key_secret", tmp_path)
    endpoints = ("tcp://0.0.0.0:6000", "ipc:///run/user/7/retinad/x")
    assert config.publish == PublishConfig(endpoints, 128, 1.0, curve, True)
    assert (config.log, config.state_dir, config.exit_when_done) == (LogConfig("debug", "json"), Path("/state"), False)
    assert config.keep_state
    assert (config.keep_state_timeout_s, config.keep_state_max_age_s) == (60.0, 3600.0)


def test_the_preset_follows_the_device_and_streams_follow_the_preset(load: Load) -> None:
    config = load(CAMERA + '[model]\npreset = "lingbot-map"\ndevice = "cpu"\n')
    assert config.model.network == LINGBOT_MAP.network
    assert config.cameras[0].stream == LINGBOT_MAP.stream
    assert load(CAMERA + '[model]\ndevice = "cpu"\n').model.name == "tiny"


def test_the_output_of_check_loads_as_the_same_config(load: Load) -> None:
    config = load(
        f'{CAMERA}fps = 3\nstream = {{window = 5}}\n[[camera]]\nname = "b"\nsource = "/tmp/ü \\"x\\" #1.mp4"\n'
    )
    assert load(show_config(config)) == config


def test_the_output_of_check_holds_no_secret(load: Load) -> None:
    shown = show_config(load(f'[[camera]]\nname = "a"\nsource = "{SECRET_SOURCE}"\n'))
    assert SECRET not in shown
    assert "127.0.0.1:9/x" in shown


def test_secrets_are_known_and_not_in_the_representation(load: Load) -> None:
    config = load(f'[[camera]]\nname = "a"\nsource = "{SECRET_SOURCE}"\n')
    assert {SECRET, f"{SECRET}2"} <= config.secrets
    assert SECRET not in repr(config)


# Errors: misspelt keys, wrong types, secrets, broken files


@pytest.mark.parametrize(
    ("text", "key", "line", "hint"),
    [
        (f"{CAMERA}fsp = 3\n", "camera[0].fsp", 4, "`fps`"),
        (f"{CAMERA}[publish]\nbufer_mb = 3\n", "publish.bufer_mb", 5, "`buffer_mb`"),
        (f"{CAMERA}[publish]\nbuffer-mb = 3\n", "publish.buffer-mb", 5, "`buffer_mb`"),
        (f"{CAMERA}[publish.curve]\nauthorised_keys_dir = 3\n", "publish.curve.authorised_keys_dir", 5, "authorized"),
        (f"{CAMERA}[modle]\npreset = 'tiny'\n", "modle", 4, "`model`"),
        (f"{CAMERA}[[cameras]]\nfsp = 3\n", "cameras", 4, "`camera`"),
        (f"{CAMERA}\nstream = {{ windw = 3 }}\n", "camera[0].stream.windw", 5, "`window`"),
        (f"{CAMERA}[model]\n'a b' = 3\n", 'model."a b"', 5, "known keys"),
        (f"porrt = 1\n{CAMERA}", "porrt", 1, "known tables"),
    ],
)
def test_an_unknown_key_is_an_error_with_its_place_and_a_suggestion(
    refuse: Refuse, text: str, key: str, line: int, hint: str
) -> None:
    problem = next(problem for problem in refuse(text) if "unknown" in problem.message)
    assert (problem.key, problem.line) == (key, line)
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("publish", "buffer_mb", value)
        for value in ("true", "1.0", "0", "-1", '"64"', "nan", "1e9", "99999999999999999999999", "[64]", "1979-05-27")
    ]
    + [("publish", "heartbeat_s", value) for value in ("true", "nan", "inf", "-inf", "0", "-5", '"5"', "1e400", "{}")]
    + [("publish", "endpoints", value) for value in ('"tcp://127.0.0.1:1"', "[]", "[1]", '[""]', '["a\\nb"]')]
    + [("publish", "allow_plaintext", value) for value in ("1", '"true"', "0.0")]
    + [("model", "layers", value) for value in ("3", "[]", "[true]", "[-1]", "[1.0]", "[3, 1]", "[1, 1]", "[4]")]
    + [("model", "tokens", value) for value in ('"camera"', "[]", '["cls"]', '["camera", "camera"]')]
    + [("model", "device", value) for value in ('"gpu"', '"cuda:x"', '"cuda:-1"', '"CPU"', "0")]
    + [("model", "dtype", value) for value in ('"fp16"', "16", '"float64"')]
    + [("model", "preset", value) for value in ('"tny"', '""', "true")]
    + [("model", "channels", value) for value in ("0", "254", "6", "1e3")]
    + [("model", "image_width", value) for value in ("0", "100", "14.0")]
    + [("model", "patch_embed", value) for value in ('"dinov2_vitl14_reg"', '"vit"')]
    + [("model", "seed", value) for value in ("-1", "9223372036854775808", "0.5")]
    + [("model", "mlp_ratio", value) for value in ("0", "nan", "false")]
    + [("model", "checkpoint", value) for value in ('""', '"/nope.pt"', '"a\\u0000b"', "0")]
    + [("model", "backbone_checkpoint", value) for value in ('""', '"/nope.pt"', "true")]
    + [("model", "pool", value) for value in ("0", "2.0")]
    + [("stream", "epoch_frames", value) for value in ("-1", "4", "1.5", "true")]
    + [
        ("stream", key, value)
        for key in ("window", "scale_frames", "keyframe_interval")
        for value in ("0", "-1", "1.5")
    ]
    + [("service", "log_level", value) for value in ('"loud"', "10")]
    + [("service", "keep_state_timeout_s", value) for value in ("0", "-1", "1e9", '"30"')]
    + [("service", "keep_state_max_age_s", value) for value in ("0", "1e12", "true")]
    + [("service", "exit_when_done", "1"), ("service", "state_dir", '""'), ("service", "keep_state", '"yes"')],
)
def test_a_wrong_value_is_an_error_at_its_key(refuse: Refuse, table: str, key: str, value: str) -> None:
    problems = refuse(f"{CAMERA}[{table}]\n{key} = {value}\n")
    assert {problem.line for problem in problems} == {5}
    assert all(problem.key.startswith(f"{table}.{key}") for problem in problems)
    assert all("expected" in problem.message or "no such" in problem.message for problem in problems)


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", value) for value in ('""', '"a b"', '"a/b"', '"a\\n"', "1", f'"{"x" * 65}"', '"ü"')]
    + [("source", value) for value in ('""', "-1", "1.5", "true", '"a\\u0000"', '"foo://x"', '"synthetic:?widht=3"')]
    + [("fps", value) for value in ("0", "-1", "nan", "inf", "true", '"10"')]
    + [("mode", value) for value in ('"lve"', "1")]
    + [("loop", value) for value in ("-1", "1.0", "true")]
    + [("size", value) for value in ("[640]", "[640, 480, 3]", "[640, 0]", '"640x480"', "[640.0, 480]")]
    + [("crop", value) for value in ("[0, 0, 8]", "[0, 0, 8, 0]", "[-1, 0, 8, 8]", "[0, 0, 641, 8]", "[0, 1, 8, 480]")]
    + [("fourcc", value) for value in ('"MJPEG"', '"MJ"', "1", '"MJP\\n"')]
    + [
        ("queue_frames", "0"),
        ("connect_timeout_s", "0"),
        ("stall_timeout_s", "inf"),
        ("retry", "1"),
        ("enabled", "0"),
        ("transport", '"x"'),
    ],
)
def test_a_wrong_value_of_a_camera_is_an_error_at_its_key(refuse: Refuse, key: str, value: str) -> None:
    values = {"name": '"a"', "source": '"synthetic:"', key: value}
    text = "[[camera]]\n" + "".join(f"{name} = {item}\n" for name, item in values.items())
    line = list(values).index(key) + 2
    assert {(problem.key.partition("[0].")[2].partition("[")[0], problem.line) for problem in refuse(text)} == {
        (key, line)
    }


def test_number_forms_of_toml_are_numbers(load: Load) -> None:
    assert load(f"{CAMERA}[publish]\nbuffer_mb = 0x10\nheartbeat_s = 1_0\n").publish == replace(
        load(CAMERA).publish, buffer_mb=16, heartbeat_s=10.0
    )


def test_a_misspelt_choice_is_suggested_without_showing_what_was_written(refuse: Refuse) -> None:
    (problem,) = refuse(f'{CAMERA}mode = "lossles"\n')
    assert problem.hint == "did you mean `lossless`?"


def test_all_errors_come_at_once_in_the_order_of_the_file(refuse: Refuse) -> None:
    problems = refuse(
        """
[publish]
buffer_mb = 0
endpoints = ["tcp://0.0.0.0:5555", "udp://x"]
[model]
channels = 30
layers = [9]
[[camera]]
name = "a"
source = "foo://x"
[[camera]]
name = "a"
fps = 0
source = "synthetic:"
""",
        {"RETINAD_X__Y": "1"},
    )
    assert [problem.key for problem in problems] == [
        "RETINAD_X__Y",
        "publish.buffer_mb",
        "publish.endpoints[0]",  # found although another key of the table has a wrong value
        "publish.endpoints[1]",
        "model.channels",
        "model.layers",
        "camera[0].source",
        "camera[1].name",
        "camera[1].fps",
    ]


def test_a_name_that_is_used_twice_is_an_error(refuse: Refuse) -> None:
    (problem,) = refuse(CAMERA + CAMERA)
    assert (problem.key, problem.line, problem.column) == ("camera[1].name", 5, 1)


def test_more_cameras_than_any_service_has_are_an_error(refuse: Refuse) -> None:
    """Each camera takes time to check, and a reload that takes too long is abandoned without a reason."""
    (problem,) = refuse(f"camera = [{'{},' * 100_000}]")
    assert (problem.key, problem.message) == ("camera", "expected at most 4096 cameras, got 100000")


def test_of_many_errors_the_first_are_reported_and_the_rest_counted(refuse: Refuse) -> None:
    """A reload logs all errors in one line."""
    problems = refuse("[model]\n" + "".join(f"key{number} = 1\n" for number in range(250)) + CAMERA)
    assert [problem.line for problem in problems] == [*range(2, 102), None]
    assert problems[-1].message == "150 more problems are not listed"


@pytest.mark.parametrize("text", ["", "camera = []\n", "camera = 3\n", '[camera]\nname = "a"\nsource = "0"\n'])
def test_a_service_without_cameras_is_an_error(refuse: Refuse, text: str) -> None:
    (problem,) = refuse(text)
    assert problem.key == "camera"
    assert "[[camera]]" in problem.message


@pytest.mark.parametrize(
    ("endpoint", "word"),
    [
        ("tcp://0.0.0.0:5555", "other machines"),
        ("tcp://*:5555", "other machines"),
        ("tcp://[::]:5555", "other machines"),
        ("tcp://192.0.2.1:5555", "other machines"),
        ("tcp://127.0.0.1:0", "port"),
        ("tcp://127.0.0.1:65536", "port"),
        ("tcp://127.0.0.1:*", "port"),
        ("tcp://127.0.0.1", "port"),
        ("udp://127.0.0.1:5", "tcp://"),
        ("inproc://x", "tcp://"),
        (f"ipc:///{'x' * 108}", "107 bytes"),
        (f"tcp://u:{SECRET}@127.0.0.1:x", "port"),
    ],
)
def test_an_endpoint_that_must_not_be_bound_is_an_error(refuse: Refuse, endpoint: str, word: str) -> None:
    (problem,) = refuse(f'{CAMERA}[publish]\nendpoints = ["tcp://localhost:1", "{endpoint}"]\n')
    assert problem.key == "publish.endpoints[1]"
    assert word in f"{problem.message} {problem.hint}"


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        ("heads = 3", "multiple of heads"),
        ("channels = 8", "multiple of 4"),
        ("channels = 32", "at least 12 with rope3d"),
        ("depth = 2", "0 to 1"),
        ("patch_size = 15", "multiple of patch_size"),
        ('channels = 384\nheads = 6\npatch_embed = "dinov2_vitb14_reg"', "channels = 768"),
        ('channels = 384\nheads = 6\npatch_embed = "dinov2_vits14_reg"\npatch_size = 16', "patch_size = 14"),
        ('register_tokens = 0\ntokens = ["registers"]', "no registers"),
        ('tokens = ["pooled"]\npool = 17', "16 columns"),
        ("depth = 0\nlayers = [1]", "[0] with depth = 0"),
        ("depth = 0\nlayers = [0, 1]", "[0] with depth = 0"),
        ('depth = 0\ntokens = ["patch", "camera", "scale"]', "got camera, scale"),
    ],
)
def test_an_inconsistent_shape_is_an_error(refuse: Refuse, shape: str, word: str) -> None:
    assert any(word in problem.message for problem in refuse(f"{CAMERA}[model]\n{shape}\n"))


def test_without_blocks_the_patch_embedding_is_published(load: Load, tmp_path: Path) -> None:
    (tmp_path / "dino.pth").write_bytes(ZIP_START)
    model = load(
        f"""{CAMERA}[model]
        preset = "lingbot-map"
        device = "cpu"
        depth = 0
        backbone_checkpoint = "{tmp_path}/dino.pth"
        """
    ).model
    assert (model.output.layers, model.output.tokens) == ((0,), (TokenGroup.PATCH,))
    assert (model.backbone_checkpoint, model.checkpoint) == (tmp_path / "dino.pth", None)
    assert not model.random_weights
    assert replace(model, network=LINGBOT_MAP.network).random_weights


def test_consequences_of_a_broken_key_are_not_reported(refuse: Refuse) -> None:
    problems = refuse(f'{CAMERA}[model]\nchannels = "many"\nheads = 7\nlayers = [90]\n')
    assert sorted(problem.key for problem in problems) == ["model.channels", "model.layers"]


def test_a_checkpoint_and_a_backbone_exclude_each_other(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(ZIP_START)
    both = f'[model]\ncheckpoint = "{tmp_path}/a.pt"\nbackbone_checkpoint = "{tmp_path}/a.pt"\n'
    messages = [problem.message for problem in refuse(f"{CAMERA}{both}")]
    assert any("checkpoint or backbone_checkpoint, not both" in message for message in messages)
    assert any("dinov2_vits14_reg" in message for message in messages)  # the tiny preset has no DINOv2 embedding


def test_epochs_are_longer_than_their_scale_frames(load: Load, refuse: Refuse) -> None:
    problems = refuse(f'{CAMERA}stream = {{ epoch_frames = 4 }}\n[[camera]]\nname = "b"\nsource = "synthetic:"\n')
    assert [problem.key for problem in problems] == ["camera[0].stream.epoch_frames"]
    (problem,) = refuse(f"{CAMERA}stream = {{ scale_frames = 9 }}\n[stream]\nepoch_frames = 9\n")
    assert problem.key == "camera[0].stream.scale_frames"
    assert load(f"{CAMERA}[stream]\nepoch_frames = 5\n").cameras[0].stream.epoch_frames == 5


CALIBRATION = '{"K": [[50, 0, 31.5], [0, 50, 23.5], [0, 0, 1]], "D": [-0.2, 0.05, 0, 0], "width": 64, "height": 48}'


def test_what_is_known_of_a_view_is_read_from_its_files(load: Load, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(CALIBRATION)
    picture = np.zeros((6, 9), np.uint8)
    picture[:, 4:] = 255
    cv2.imwrite(str(tmp_path / "mask.png"), picture)
    keys = f'intrinsics = "{tmp_path}/a.json"\nmask = "{tmp_path}/mask.png"\nmask_fill = "mean"\n'
    config = load(f"{CAMERA}{keys}known_distance = {{ metres = 2, from_s = 5, to_s = 15.5 }}\n")
    view = config.cameras[0].view
    assert view.calibration is not None
    assert (view.calibration.size, view.calibration.coefficients) == ((64, 48), (-0.2, 0.05, 0.0, 0.0))
    assert view.mask is not None
    assert (view.mask.size, view.mask_fill) == ((9, 6), "mean")
    np.testing.assert_array_equal(counts_of(view.mask, (9, 6)), picture > 0)
    assert view.known_distance == KnownDistance(2.0, 5.0, 15.5)
    assert load(show_config(config)) == config
    polygons = load(f"{CAMERA}mask = [[[0, 0], [4, 0], [0, 4.5]]]\nmetres_per_unit = 1.5\n")
    assert polygons.cameras[0].view == ViewConfig(
        mask=Mask(polygons=(((0.0, 0.0), (4.0, 0.0), (0.0, 4.5)),)), metres_per_unit=1.5
    )
    assert load(show_config(polygons)) == polygons


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ('intrinsics = "/none.yaml"', "intrinsics", "/none.yaml cannot be used: it cannot be read: No such file"),
        ('intrinsics = "/proc/version"', "intrinsics", "/proc/version cannot be used: "),
        ('mask = "/none.png"', "mask", "/none.png cannot be used: it cannot be read: No such file"),
        ('mask = "/proc/version"', "mask", "/proc/version cannot be used: it cannot be decoded"),
        ("mask = [[[0, 0], [1, 1]]]", "mask", "at least 3 corners"),
        ('mask_fill = "mean"', "mask_fill", "nothing to fill without a mask"),
        ("metres_per_unit = 0", "metres_per_unit", "more than 0"),
        (
            "metres_per_unit = 1\nknown_distance = { metres = 1, from_s = 0, to_s = 1 }",
            "known_distance",
            "metres_per_unit or known_distance, not both",
        ),
        ("known_distance = { metres = 1, from_s = 2, to_s = 1 }", "known_distance.to_s", "more than from_s = 2"),
    ],
)
def test_what_cannot_be_known_of_a_view_is_refused(refuse: Refuse, keys: str, key: str, said: str) -> None:
    (problem,) = refuse(f"{CAMERA}{keys}\n")
    assert problem.key == f"camera[0].{key}"
    assert said in problem.message


def test_locating_needs_poses_and_an_endpoint_of_its_own(load: Load, refuse: Refuse, tmp_path: Path) -> None:
    poses = '[model]\noutputs = ["pose"]\n'

    def publish(endpoint: str) -> str:
        return f'{CAMERA}[publish]\nendpoints = ["tcp://127.0.0.1:5555"]\nlocate_endpoint = "{endpoint}"\n'

    assert load(CAMERA).publish.locate_endpoint is None
    found = load(publish("ipc://{runtime}/locate.sock") + poses).publish.locate_endpoint
    assert found is not None
    assert found.endswith("/locate.sock")
    assert "{" not in found
    for endpoint, config, said in (
        ("tcp://127.0.0.1:5556", "", "needs the output pose, got features"),
        ("tcp://127.0.0.1:5555", poses, "`endpoints` lists it too"),
        ("tcp://localhost:5555", poses, "the same socket"),
        ("tcp://0.0.0.0:5556", poses, "reachable from other machines"),
        ("http://127.0.0.1:5556", poses, "expected tcp://HOST:PORT or ipc:///PATH"),
    ):
        (problem,) = refuse(publish(endpoint) + config)
        assert (problem.key, said in problem.message) == ("publish.locate_endpoint", True), problem


def test_keyframes_by_motion_need_pose_depth_and_an_interval(load: Load, refuse: Refuse) -> None:
    """Otherwise there would be nothing to choose by, or every frame would be a keyframe."""
    both = 'outputs = ["pose", "depth"]'
    stream = "[stream]\nkeyframe_interval = 30\nkeyframe_flow_px = 12.5\n"
    assert load(f"{CAMERA}[model]\n{both}\n{stream}").cameras[0].stream.keyframe_flow_px == 12.5
    (problem,) = refuse(f"{CAMERA}[stream]\nkeyframe_flow_px = 12.5\n[model]\n{both}\n")
    assert (problem.key, "keyframe_interval > 1" in problem.message) == ("stream.keyframe_flow_px", True)
    (problem,) = refuse(f"{CAMERA}{stream}")
    assert (problem.key, problem.message) == (
        "stream.keyframe_flow_px",
        "needs the outputs pose and depth, got features",
    )
    (problem,) = refuse(
        f'{CAMERA}outputs = ["pose"]\nstream = {{ keyframe_flow_px = 3, keyframe_interval = 9 }}\n[model]\n{both}\n'
    )
    assert (problem.key, "got pose" in problem.message) == ("camera[0].stream.keyframe_flow_px", True)


def test_a_missing_device_is_not_a_fault_of_the_config(load: Load, refuse: Refuse) -> None:
    text = CAMERA + '[model]\ndevice = "cuda:99"\n'
    with pytest.raises(ModelError, match="cuda:99"):
        load(text)
    (problem,) = refuse(text + "seed = -1\n")
    assert problem.key == "model.seed"


def test_settings_that_cannot_run_on_their_device_are_refused_with_their_place(refuse: Refuse) -> None:
    text = f'{CAMERA}[model]\nattention = "triton"\nexecution = "captured"\ndevice = "cpu"\n'
    problems = refuse(text, {"RETINAD_MODEL__MEMORY_DTYPE": "float8_e4m3fn"})
    assert [(problem.line, problem.key, problem.hint) for problem in problems] == [
        (None, "RETINAD_MODEL__MEMORY_DTYPE", "set memory_dtype = 'auto'"),
        (5, "model.attention", "set attention = 'dense'"),
        (6, "model.execution", "set execution = 'auto'"),
    ]
    assert problems[1].message == "triton runs on CUDA, not on cpu"


def test_problems_of_all_steps_are_reported_together(refuse: Refuse) -> None:
    """A variable that names no key, an unknown key, wrong values, a conflict, and a setting that the CPU cannot run."""
    text = """
[service]
log_levle = "info"
[model]
device = "cpu"
execution = "captured"
[stream]
window = 0
epoch_frames = 3
[[camera]]
name = "a"
source = "foo://x"
"""
    assert [problem.key for problem in refuse(text, {"RETINAD_X__Y": "1"})] == [
        "RETINAD_X__Y",
        "service.log_levle",
        "model.execution",
        "stream.window",
        "stream.epoch_frames",
        "camera[0].source",
    ]


def test_possible_consequences_of_a_misspelt_format_are_not_reported(refuse: Refuse) -> None:
    (problem,) = refuse(f'{CAMERA}[model]\ndevice = "cpu"\ndtype = "bf16"\nexecution = "fused"\n')
    assert problem.key == "model.dtype"


def test_a_config_that_needs_the_gpu_that_auto_did_not_find_may_be_retried(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd then restarts the service: the driver may only be late."""
    monkeypatch.setattr("retinad.daemon.config.model.resolve_device", lambda device: "cpu")
    with pytest.raises(ModelError, match=r"found no CUDA device(.|\n)*config\.toml:5:1: model\.attention"):
        load(f'{CAMERA}[model]\nattention = "flashinfer"\n')


@pytest.mark.parametrize(
    "text",
    [
        f'[[camera]]\nsource = "{SECRET_SOURCE}"\n',  # a missing sibling
        f'[[camera]]\nname = "{SECRET_SOURCE}"\nsource = 3.0\n',
        f'[[camera]]\nname = "a"\nsourec = "{SECRET_SOURCE}"\n',
        f'[[camera]]\nname = "a"\nsource = ["{SECRET_SOURCE}"]\n',
        f'[[camera]]\nname = "a"\nsource = {{ url = "{SECRET_SOURCE}" }}\n',
        f'[[camera]]\nname = "a"\nsource = {SECRET_SOURCE}\n',
        f'[[camera]]\nname = "a"\nsource = "{SECRET_SOURCE}\n',
        f'[[camera]]\nname = "a"\nsource = "x{SECRET_SOURCE}"\n',
        f'[[camera]]\nname = "a"\nsource = "rtsp://admin:{SECRET}@/x"\n',
        f'[[camera]]\nname = "a"\nsource = "{SECRET_SOURCE}"\nmode = "{SECRET_SOURCE}"\n',
        f'[[camera]]\nname = "a"\nsource = "{SECRET_SOURCE}"\nsize = "{SECRET_SOURCE}"\n',
        f'camera = ["{SECRET_SOURCE}"]\n',
        f'camera = "{SECRET_SOURCE}"\n',
        f'"{SECRET_SOURCE}" = 1\n{CAMERA}',
        f'"{SECRET_SOURCE}" = \n{CAMERA}',
        f'{CAMERA}[publish]\nendpoints = ["{SECRET_SOURCE}"]\n',
        f'{CAMERA}[model]\ndevice = "{SECRET_SOURCE}"\n',
    ],
)
def test_no_error_shows_a_secret(refuse: Refuse, text: str) -> None:
    assert refuse(text)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (f'{CAMERA}[model]\npreset = "tny"\n', 'got "tny"'),
        (f'{CAMERA}[model]\ntokens = ["camera", "patches"]\n', 'got "patches"'),
        (f'{CAMERA}[model]\nmixers = ["kad"]\n', 'got "kad"'),
        (f'{CAMERA}[model]\ndevice = "gpu"\n', 'got "gpu"'),
        (f'{CAMERA}mode = "alive"\n', 'got "alive"'),
        ('[[camera]]\nname = "front door!"\nsource = "synthetic:"\n', 'got "front door!" (a space, ! are not allowed)'),
        ('[[camera]]\nname = "front door"\nsource = "synthetic:"\n', 'got "front door" (a space is not allowed)'),
        ('[[camera]]\nname = "Haustür"\nsource = "synthetic:"\n', 'got "Haustür" (ü is not allowed)'),
        ('[[camera]]\nname = "玄関"\nsource = "synthetic:"\n', 'got "玄関" (玄, 関 are not allowed)'),
        (f'[[camera]]\nname = "{"a" * 65}"\nsource = "synthetic:"\n', "got 65 characters"),
        ('[[camera]]\nname = ""\nsource = "synthetic:"\n', "got an empty string"),
        ('[[camera]]\nname = "u:pw@h"\nsource = "synthetic:"\n', "got a string"),
        ('[[camera]]\nname = "a\\u0007"\nsource = "synthetic:"\n', "got a string"),
        (f'{CAMERA}fourcc = "MJPEG"\n', 'got "MJPEG"'),
        (f'{CAMERA}[model]\ncheckpoint = "{"x" * 5000}"\n', "got 5000 characters"),
        (f'{CAMERA}[model]\ncheckpoint = ""\n', "got an empty string"),
        (f'{CAMERA}fps = "ten"\n', "got a string"),
    ],
)
def test_an_error_quotes_a_word_where_a_choice_belongs_and_no_other_string(refuse: Refuse, text: str, got: str) -> None:
    (problem,) = refuse(text)
    assert problem.message.endswith(got)


@pytest.mark.parametrize(
    ("text", "key", "line", "column"),
    [
        ("[publish]\nbuffer_mb = \n", "publish.buffer_mb", 2, 13),
        ("[publish]\nbuffer_mb = ", "publish.buffer_mb", 2, 1),
        ("[publish]\nbuffer_mb = 1\nbuffer_mb = 2\n", "publish.buffer_mb", 3, None),
        ("[publish]\n[publish]\n", "publish", 2, None),
        ("[[camera]]\nname = 'a'\n\nsource = rtsp://h/x\n", "camera[0].source", 4, 10),
        ('[[camera]]\nname = "abc\n', "camera[0].name", 2, None),
        ('[[camera]]\nname = """abc\n\n\n', "camera[0].name", 2, 1),
        ("[publish\nbuffer_mb = 1\n", "", 1, None),
        ("x = [1,\n2\n\n", "x[1]", 2, None),
        # What a header or a key does wrong is not the fault of the key before it.
        ("[publish]\nbuffer_mb = 1\n[[camera]\n", "", 3, None),
        ("[publish]\nbuffer_mb = 1\n[model\n", "", 3, None),
        ("[publish]\nbuffer_mb = 1\n= 3\n", "", 3, None),
        ("[publish]\nbuffer_mb = 1\n\nü = 3\n", "", 4, None),
        ("[publish]\nbuffer_mb = 1\nheartbeat_s 3\n", "publish.heartbeat_s", 3, None),
        ('[publish]\nendpoints = [\n  "a"\n  "b"\n]\n', "publish.endpoints[0]", 4, None),
        ('[publish]\nendpoints = ["a"\n[model]\n', "publish.endpoints[0]", 3, None),
    ],
)
def test_a_syntax_error_has_line_column_and_key(
    refuse: Refuse, text: str, key: str, line: int, column: int | None
) -> None:
    (problem,) = refuse(text)
    assert (problem.key, problem.line) == (key, line)
    assert problem.column == column or (column is None and problem.column is not None)
    assert problem.message.startswith("not TOML")


def test_a_broken_header_is_quoted(refuse: Refuse) -> None:
    (problem,) = refuse(CAMERA + "[[camera]  # the second\n")
    assert problem.message == "not TOML: Expected ']]' at the end of an array declaration, got [[camera]"
    (problem,) = refuse(f"{CAMERA}[rtsp://u:{SECRET}@h\n")
    assert "got" not in problem.message


def test_a_repeated_name_says_where_the_first_is(refuse: Refuse) -> None:
    (problem,) = refuse(CAMERA + CAMERA.replace('"a"', '"b"') + CAMERA)
    assert (problem.line, problem.message) == (8, '"a" is already the camera at line 2')


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[publish]\nendpoints = "tcp://127.0.0.1:1"\n', 'write ["tcp://..."]'),
        (f'[publish]\nendpoints = "{SECRET_SOURCE}"\n', 'write ["..."]'),
        ('[model]\ntokens = "camera"\n', 'write ["camera"]'),
        ("fps = '25'\n", "write 25 without quotes"),
        ("retry = 'false'\n", "write false without quotes"),
        ("[service]\nlog_file = '/var/log/x'\n", "known keys: log_level, log_format"),
        ("[service]\nlog_levle = 'info'\n", "did you mean `log_level`?"),
        ("frames = 3\n", "known keys: "),
        ("queue_frame = 3\n", "did you mean `queue_frames`?"),
        ("queueframes = 3\n", "did you mean `queue_frames`?"),
    ],
)
def test_a_hint_means_the_same(refuse: Refuse, text: str, hint: str) -> None:
    (problem,) = refuse(CAMERA + text)
    assert problem.hint.startswith(hint)


def test_a_missing_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope.toml: cannot read the config: No such file"):
        load_config(tmp_path / "nope.toml", {})
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path, {})
    with pytest.raises(ConfigError, match="null character"):
        load_config(Path("a\0b"), {})


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"[publish]\nx = '\xff'\n")
    with pytest.raises(ConfigError, match=r"config.toml:2:6: not UTF-8"):
        load_config(path, {})
    path.write_bytes(b"x" * (1 << 21))
    with pytest.raises(ConfigError, match="1 MiB"):
        load_config(path, {})


# tomllib takes memory quadratic in the length of a dotted key: 160 GB for the first two of these.
@pytest.mark.parametrize(
    "text", ["a" + ".a" * 400_000 + " = 1", "[" + "a." * 400_000 + "a]", "a = " + "[" * 60 + "]" * 60]
)
def test_a_file_that_is_nested_too_deeply_is_an_error(refuse: Refuse, text: str) -> None:
    (problem,) = refuse(f"{text}\n{CAMERA}")
    assert "Nested too deeply" in problem.message


@pytest.mark.parametrize(
    "table",
    [
        '[model]\ncheckpoint = "{}"\n',
        '[publish.curve]\nserver_secret_key_file = "/dev/null"\nauthorized_keys_dir = "{}"\n',
        '[publish.curve]\nserver_secret_key_file = "{}"\nauthorized_keys_dir = "/tmp"\n',
        '[publish.curve]\nserver_secret_key_file = "credential:{}"\nauthorized_keys_dir = "/tmp"\n',
    ],
)
def test_a_path_that_cannot_be_checked_is_an_error(refuse: Refuse, table: str) -> None:
    # Like a folder that the user may not enter; tests run as root, where only such a name makes the check fail.
    assert refuse(CAMERA + table.format("x" * 300), {"CREDENTIALS_DIRECTORY": "/tmp"})


def test_windows_line_ends_and_byte_order_marks_are_read(load: Load) -> None:
    assert load("\ufeff" + CAMERA.replace("\n", "\r\n")) == load(CAMERA)


# The environment


@pytest.mark.parametrize(
    ("variable", "value", "read", "expected"),
    [
        ("RETINAD_PUBLISH__BUFFER_MB", "128", lambda config: config.publish.buffer_mb, 128),
        ("RETINAD_PUBLISH__HEARTBEAT_S", "2.5", lambda config: config.publish.heartbeat_s, 2.5),
        (
            "RETINAD_PUBLISH__ENDPOINTS",
            '["tcp://[::1]:1"]',
            lambda config: config.publish.endpoints,
            ("tcp://[::1]:1",),
        ),
        ("RETINAD_SERVICE__EXIT_WHEN_DONE", "false", lambda config: config.exit_when_done, False),
        ("RETINAD_SERVICE__STATE_DIR", "/x", lambda config: config.state_dir, Path("/x")),
        ("RETINAD_MODEL__DTYPE", "float16", lambda config: config.model.dtype, "float16"),
        ("RETINAD_MODEL__DTYPE", '"float16"', lambda config: config.model.dtype, "float16"),
        ("RETINAD_MODEL__LAYERS", "[1]", lambda config: config.model.output.layers, (1,)),
        ("RETINAD_STREAM__WINDOW", "3", lambda config: config.cameras[0].stream.window, 3),
        ("RETINAD_CAMERA__A_B__SOURCE", "2", lambda config: config.cameras[0].source, "2"),
        ("RETINAD_CAMERA__A_B__CROP", "[0, 8, 64, 48]", lambda config: config.cameras[0].crop, (0, 8, 64, 48)),
        ("RETINAD_CAMERA__A_B__FOURCC", "1234", lambda config: config.cameras[0].fourcc, "1234"),
        ("RETINAD_CAMERA__A_B__STREAM__WINDOW", "4", lambda config: config.cameras[0].stream.window, 4),
    ],
)
def test_a_variable_overrides_its_key(
    load: Load, variable: str, value: str, read: Callable[[ServiceConfig], object], expected: object
) -> None:
    text = '[[camera]]\nname = "a-b"\nsource = "synthetic:"\n[publish]\nbuffer_mb = 1\n'
    assert read(load(text, {variable: value, "PATH": "/bin", "RETINA": "x"})) == expected


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("RETINAD_PUBLISH__BUFER_MB", "`RETINAD_PUBLISH__BUFFER_MB`"),
        ("RETINAD_PUBLISH_BUFFER_MB", "`RETINAD_PUBLISH__BUFFER_MB`"),
        ("RETINAD_publish__buffer_mb", "`RETINAD_PUBLISH__BUFFER_MB`"),
        ("RETINAD_CAMERA__A__FSP", "`RETINAD_CAMERA__A__FPS`"),
        ("RETINAD_CAMERA__NOBODY__FPS", ""),
        ("RETINAD_CAMERA__A__NAME", ""),
        ("RETINAD_PROT", "RETINAD_TABLE__KEY"),
        ("RETINAD_", "RETINAD_TABLE__KEY"),
    ],
)
def test_a_variable_that_names_no_key_is_an_error(refuse: Refuse, variable: str, hint: str) -> None:
    (problem,) = refuse(CAMERA, {variable: SECRET})
    assert (problem.file, problem.key) == ("environment", variable)
    assert hint in problem.hint


@pytest.mark.parametrize(
    "value", ["true", "1.0", "x", "", f"rtsp://a:{SECRET}@h", "1\nallow_plaintext = true", "[" * 9999]
)
def test_a_wrong_value_of_a_variable_is_an_error_of_the_variable(refuse: Refuse, value: str) -> None:
    (problem,) = refuse(CAMERA, {"RETINAD_PUBLISH__BUFFER_MB": value})
    assert (problem.file, problem.line, problem.key) == ("environment", None, "RETINAD_PUBLISH__BUFFER_MB")


def test_a_source_that_is_not_text_is_an_error(refuse: Refuse) -> None:
    (problem,) = refuse(CAMERA, {"RETINAD_CAMERA__A__SOURCE": b"/clips/\xff.mp4".decode(errors="surrogateescape")})
    assert problem.key == "RETINAD_CAMERA__A__SOURCE"
    assert "UTF-8" in problem.message


@pytest.mark.parametrize(
    ("names", "variable"),
    [
        (("x-1", "x_1"), "RETINAD_CAMERA__X_1__FPS"),
        (("Hall", "hall"), "RETINAD_CAMERA__HALL__SOURCE"),
    ],
)
def test_a_variable_that_fits_two_cameras_names_both(refuse: Refuse, names: tuple[str, str], variable: str) -> None:
    text = "".join(CAMERA.replace('"a"', f'"{name}"') for name in names)
    (problem,) = refuse(text, {variable: "1"})
    assert problem.key == variable
    assert problem.message == f"fits two cameras, {names[0]} and {names[1]}"


LINKS = {
    "RETINAD_SERVICE_HOST": "10.0.48.109",
    "RETINAD_SERVICE_PORT": "5555",
    "RETINAD_SERVICE_PORT_ZMQ": "5555",
    "RETINAD_PORT": "tcp://10.0.48.109:5555",
    "RETINAD_PORT_5555_TCP": "tcp://10.0.48.109:5555",
    "RETINAD_PORT_5555_TCP_PROTO": "tcp",
    "RETINAD_PORT_5555_TCP_PORT": "5555",
    "RETINAD_PORT_5555_TCP_ADDR": "10.0.48.109",
    "RETINAD_X_2_SERVICE_HOST": "fd00::1",
    "RETINAD_X_2_PORT": "udp://[fd00::1]:53",
    "RETINAD_MODEL_PORT_53_UDP_ADDR": "fd00::1",
    "RETINAD_NAME": "/web/retinad",
}
"""Variables of Services `retinad`, `retinad-x-2` and `retinad-model`, and of an old link of Docker."""


def test_variables_of_a_service_of_the_same_name_are_passed_over(load: Load) -> None:
    config = load(CAMERA, LINKS)
    (note,) = config.notes
    assert "Kubernetes" in note
    assert "enableServiceLinks: false" in note
    assert load(CAMERA).notes == ()
    assert config == load(CAMERA)


@pytest.mark.parametrize("link", LINKS)
def test_each_of_these_variables_is_known(load: Load, link: str) -> None:
    assert link in load(CAMERA, {link: LINKS[link]}).notes[0]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RETINAD_PORT", "5555"),
        ("RETINAD_SERVICE_HOST", "true"),
        ("RETINAD_SERVICE_STATE_DIR", "/x"),
        ("RETINAD_SERVICE_LOG_LEVEL", "info"),
        ("RETINAD_PUBLISH__BUFER_MB", "tcp://10.0.48.109:5555"),
        ("RETINAD_MODEL__PORT", "tcp://10.0.48.109:5555"),
        ("RETINAD_NAME", "hall"),
    ],
)
def test_a_misspelt_variable_stays_an_error_beside_them(refuse: Refuse, variable: str, value: str) -> None:
    (problem,) = refuse(CAMERA, LINKS | {variable: value})
    assert problem.key == variable


# What the service would refuse later


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no public key"),
        (f'public-key = "{"0" * 40}"\n', "no secret key"),
        ("public-key\n", "no `=`"),
        (None, "no such"),
    ],
)
def test_a_server_key_that_is_none_is_an_error(
    refuse: Refuse, tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    (problem,) = refuse(with_keys(tmp_path / "key", tmp_path))
    assert problem.key == "publish.curve.server_secret_key_file"
    assert reason in problem.message


def test_a_server_key_that_is_no_curve_key_is_an_error(refuse: Refuse, tmp_path: Path) -> None:
    write_key(tmp_path / "key", SECRET)
    (problem,) = refuse(with_keys(tmp_path / "key", tmp_path))
    assert "not a CURVE key" in problem.message


def test_a_clients_key_that_cannot_be_used_is_named(load: Load, tmp_path: Path) -> None:
    write_key(tmp_path / "server")
    (tmp_path / "server").chmod(0o600)
    write_key(tmp_path / "good.key")
    write_key(tmp_path / "junk.key", SECRET)
    (tmp_path / "folder.key").mkdir()
    config = load(with_keys(tmp_path / "server", tmp_path))
    assert [name in note for name, note in zip(("folder.key", "junk.key"), config.notes, strict=True)] == [True, True]
    assert SECRET not in str(config.notes)


def with_keys(server: Path, clients: Path) -> str:
    curve = f'server_secret_key_file = "{server}", authorized_keys_dir = "{clients}"'
    return f"{CAMERA}[publish]\ncurve = {{ {curve} }}\n"


@pytest.mark.parametrize(
    ("socket", "reason"),
    [("none/x.sock", "there is no folder"), ("file/x.sock", "there is no folder"), ("folder", "is a folder")],
)
def test_a_socket_that_cannot_be_made_is_an_error(refuse: Refuse, tmp_path: Path, socket: str, reason: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (problem,) = refuse(f'{CAMERA}[publish]\nendpoints = ["ipc://{tmp_path}/{socket}"]\n')
    assert problem.key == "publish.endpoints[0]"
    assert reason in problem.message


def test_a_socket_in_a_folder_of_others_is_an_error(
    refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *arguments: False)
    (problem,) = refuse(f'{CAMERA}[publish]\nendpoints = ["ipc://{tmp_path}/x.sock"]\n')
    assert "this user may not make files" in problem.message


def test_a_socket_in_the_runtime_folder_needs_no_folder_yet(load: Load, tmp_path: Path) -> None:
    text = f'{CAMERA}[publish]\nendpoints = ["ipc://{{runtime}}/x.sock", "ipc://@abstract"]\n'
    runtime = tmp_path / "not" / "there"
    assert load(text, {"RUNTIME_DIRECTORY": str(runtime)}).publish.endpoints[0] == f"ipc://{runtime}/x.sock"


# Credentials


def test_a_source_can_be_a_credential(load: Load, tmp_path: Path) -> None:
    (tmp_path / "door").write_text(SECRET_SOURCE + "\n")
    write_key(tmp_path / "curve")
    config = load(
        f"""
        [publish.curve]
        server_secret_key_file = "credential:curve"
        authorized_keys_dir = "{tmp_path}"
        [[camera]]
        name = "a"
        source = "credential:door"
        """,
        {"CREDENTIALS_DIRECTORY": str(tmp_path)},
    )
    assert config.cameras[0].source == SECRET_SOURCE
    assert SECRET in config.secrets
    assert config.publish.curve == CurveConfig(tmp_path / "curve", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("nope", None, "LoadCredential=nope:"),
        ("", None, "plain file name"),
        ("../door", None, "plain file name"),
        (".", None, "plain file name"),
        ("door", b"", "one line"),
        ("door", b"a\nb\n", "one line"),
        ("door", b"\xff", "UTF-8"),
        ("door", f"foo://a:{SECRET}@h".encode(), "foo://"),
    ],
)
def test_a_credential_that_cannot_be_used_is_an_error(
    refuse: Refuse, tmp_path: Path, name: str, content: bytes | None, word: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    text = f'[[camera]]\nname = "a"\nsource = "credential:{name}"\n'
    (problem,) = refuse(text, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert problem.key == "camera[0].source"
    assert word in problem.message


def test_a_credential_without_systemd_is_an_error(refuse: Refuse) -> None:
    (problem,) = refuse('[[camera]]\nname = "a"\nsource = "credential:door"\n')
    assert "LoadCredential=door:" in problem.message


# Any text at all

_KEYS = ["service", "publish", "model", "stream", "camera", "name", "source", "window", "layers", "curve", "x", '"é"']
_VALUES = ["1", "-1", "nan", "1e999", "true", '"a"', "'synthetic:'", "[1, [2]]", "{ a = 1, b.c = [] }", "1979-05-27"]
_VALUES += ['"""\nx"""', "[", "{", '"', "0x" + "f" * 400, "9" * 5000, "[" * 2000, '"\\uD800"', '"\\U0010FFFF"', "", "#"]
_LINES = st.one_of(
    st.builds("{}.{} = {}".format, st.sampled_from(_KEYS), st.sampled_from(_KEYS), st.sampled_from(_VALUES)),
    st.builds("{} = {}".format, st.sampled_from(_KEYS), st.sampled_from(_VALUES)),
    st.builds("[{}]".format, st.sampled_from(_KEYS)),
    st.builds("[[{}]]".format, st.sampled_from(_KEYS)),
    st.sampled_from(CAMERA.splitlines()),
    st.text(max_size=20),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(_LINES, max_size=12))
def test_any_text_is_a_config_or_a_config_error(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        load_config(path, {})
    except ConfigError as error:
        assert error.problems  # noqa: PT017  # most texts are refused, not all


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_config(path, {})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text(max_size=30), max_size=4), values=st.lists(st.text(max_size=30), min_size=4, max_size=4))
def test_any_environment_is_a_config_or_a_config_error(tmp_path: Path, names: list[str], values: list[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CAMERA)
    variables = itertools.chain(("RETINAD_CAMERA__A__SOURCE", "RETINAD_MODEL__LAYERS"), (f"RETINAD_{n}" for n in names))
    try:
        load_config(path, dict(zip(variables, values, strict=False)))
    except ConfigError as error:
        assert error.problems  # noqa: PT017  # most are refused, not all


def test_a_live_camera_runs_one_frame_per_step(load: Load) -> None:
    config = load(
        f'{CAMERA}[[camera]]\nname = "b"\nsource = "synthetic:"\nmode = "lossless"\n[stream]\nrun_frames = 4\n'
    )
    assert [camera.stream.run_frames for camera in config.cameras] == [1, 4]


def test_a_disabled_camera_is_checked_and_not_opened(load: Load, refuse: Refuse) -> None:
    text = '[[camera]]\nname = "a"\nsource = "synthetic:"\n[[camera]]\nname = "b"\nsource = "0"\nenabled = false\n'
    config = load(text)
    assert [camera.name for camera in config.cameras] == ["a"]
    assert [camera.name for camera in config.disabled] == ["b"]
    assert "enabled = false" in show_config(config)
    assert [camera.name for camera in load(text, {"RETINAD_CAMERA__B__ENABLED": "true"}).cameras] == ["a", "b"]
    (problem,) = refuse(text, {"RETINAD_CAMERA__A__ENABLED": "false"})
    assert "every camera is disabled" in problem.message
    (problem,) = refuse(text + "fps = 0\n")
    assert problem.line == 8
    (problem,) = refuse(text.replace('"b"', '"a"'))
    assert "same name" in problem.message or "already" in problem.message


def test_a_crop_is_compared_with_a_size_that_is_known(load: Load, refuse: Refuse) -> None:
    text = '[[camera]]\nname = "a"\nsource = "{}"\ncrop = [320, 240, 320, 240]\n'
    assert load(text.format("synthetic:")).cameras[0].crop == (320, 240, 320, 240)
    assert load(text.format("rtsp://h/x")).cameras[0].crop == (320, 240, 320, 240)
    (problem,) = refuse(text.format("synthetic:?width=600"))
    assert "crop = [320, 240, 320, 240] reaches beyond a frame of 600x480 pixels" in problem.message


def test_float8_on_a_gpu_that_lacks_it_is_an_error(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinad.daemon.config.model.resolve_device", lambda device: "cuda:0")
    monkeypatch.setattr("retinad.daemon.config.model.device_capability", lambda device: (8, 6))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    model = 'preset = "lingbot-map"\ndevice = "cuda:0"\nmemory_dtype = "float8_e4m3fn"\n'
    (problem,) = refuse(f"{CAMERA}[model]\n{model}")
    assert problem.key == "model.memory_dtype"
    assert "needs a GPU of compute capability 8.9 or more; cuda:0 has 8.6" in str(problem)


def test_a_camera_publishes_some_of_the_models_outputs(load: Load) -> None:
    model = '[model]\ndevice = "cpu"\noutputs = ["features", "pose"]\n'
    config = load(f'{CAMERA}outputs = ["pose"]\n{model}')
    assert config.model.outputs == (OutputKind.FEATURES, OutputKind.POSE)
    assert config.cameras[0].outputs == (OutputKind.POSE,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CAMERA + 'outputs = ["depth"]\n', "expected some of model.outputs (features), got depth"),
        (CAMERA + 'outputs = ["features", "features"]\n', "expected each kind at most once"),
        (CAMERA + '[model]\noutputs = ["pose", "pose"]\n', "expected each kind at most once"),
        (CAMERA + "[model]\noutputs = []\n", "model.outputs"),
        (CAMERA + '[model]\noutputs = ["normals"]\n', "model.outputs"),
        (CAMERA + '[model]\noutputs = ["depth"]\ndepth = 3\n', "computed from layers 0, 1, 2, 3, but depth = 3"),
        (CAMERA + '[model]\noutputs = ["pose"]\ndepth = 0\nlayers = [0]\ntokens = ["patch"]\n', "features alone"),
    ],
)
def test_outputs_that_cannot_be_are_refused(load: Load, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        load(text.replace("[model]", '[model]\ndevice = "cpu"\npreset = "tiny"'))
