"""Settings are named by their config keys, which users search for; an old key is an error that names the new one."""

from dataclasses import fields, replace
from types import MappingProxyType

import pytest

from retinad.daemon.config import keys
from retinad.daemon.config.keys import config_key, error_text, show_differences
from retinad.daemon.config.merge import merge
from retinad.daemon.config.tables import ModelTable, ServiceTable, StreamTable
from retinad.daemon.config.validate import validate
from retinad.pipeline.config import ModelConfig, OutputConfig, RetentionConfig, StreamConfig
from retinad.pipeline.config_diff import differences
from retinad.pipeline.errors import PublishError, StateError
from retinad.pipeline.frames import TokenGroup


@pytest.mark.parametrize(
    "name", [field.name for field in fields(ModelConfig) if field.name not in ("output", "network")]
)
def test_the_fields_of_the_model_are_keys_of_its_table(name: str) -> None:
    assert config_key(f"model.{name}").removeprefix("model.") in ModelTable.model_fields


@pytest.mark.parametrize("part", ["output", "network"])
def test_the_fields_of_its_parts_are_too(part: str) -> None:
    for field in fields(getattr(ModelConfig(), part)):
        key = config_key(f"model.{part}.{field.name}")
        assert key.removeprefix("model.") in ModelTable.model_fields
        assert config_key(f"{part}.{field.name}") == key


@pytest.mark.parametrize(
    "name",
    [field.name for field in fields(StreamConfig) if field.name != "retention"]
    + [f"retention.{field.name}" for field in fields(RetentionConfig)],
)
def test_the_fields_of_a_stream_are_keys_of_its_table(name: str) -> None:
    assert config_key(f"stream.{name}").removeprefix("stream.") in StreamTable.model_fields


@pytest.mark.parametrize("name", ["level", "form"])
def test_the_fields_of_the_log_are_keys_of_the_service(name: str) -> None:
    assert config_key(f"log.{name}").removeprefix("service.") in ServiceTable.model_fields


def test_differences_are_shown_by_their_keys() -> None:
    before = ModelConfig()
    output = OutputConfig(layers=(3,), tokens=(TokenGroup.CAMERA, TokenGroup.POOLED), dtype="float32")
    assert show_differences(differences(before, replace(before, output=output), "model")).split("; ") == [
        "model.layers was [4, 11, 17, 23], is [3]",
        "model.tokens was [camera, patch], is [camera, pooled]",
        "model.output_dtype was float16, is float32",
    ]


def test_a_state_file_of_other_settings_is_refused_by_their_keys() -> None:
    retention = RetentionConfig(camera_only=True)
    found = tuple(differences(StreamConfig(), StreamConfig(retention=retention), "stream"))
    error = StateError("a.safetensors is for another stream", found)
    assert error_text(error) == "a.safetensors is for another stream: stream.camera_only was False, is True"
    assert error_text(StateError("a.safetensors is damaged")) == "a.safetensors is damaged"


def test_an_error_of_publishing_names_the_key_at_fault() -> None:
    error = PublishError("cannot bind tcp://127.0.0.1:5555: the port is in use", "endpoints")
    assert error_text(error) == "publish.endpoints: cannot bind tcp://127.0.0.1:5555: the port is in use"
    nested = PublishError("/etc/retinad/clients: Permission denied", "curve.authorized_keys_dir")
    assert error_text(nested).startswith("publish.curve.authorized_keys_dir: ")
    assert error_text(PublishError("no field is at fault")) == "no field is at fault"


# Renamed keys


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"model.old": "model.seed", "stream.old": "stream.window", "camera.old": "camera.fps", "old": "publish"}
    monkeypatch.setattr(keys, "RENAMED", MappingProxyType(names))


@pytest.mark.usefixtures("renamed")
def test_an_old_key_is_an_error_that_names_the_new_one() -> None:
    camera = {"name": "a", "source": "synthetic:", "old": 1, "stream": {"old": 1}}
    faults = validate({"model": {"old": 1}, "stream": {"old": 1}, "camera": [camera], "old": {}}).faults
    assert {(keys.show_key(fault.path), fault.message, fault.hint) for fault in faults} == {
        ("model.old", "was renamed", "use `model.seed`"),
        ("stream.old", "was renamed", "use `stream.window`"),
        ("camera[0].old", "was renamed", "use `camera.fps`"),
        ("camera[0].stream.old", "was renamed", "use `stream.window`"),
        ("old", "was renamed", "use `publish`"),
    }


@pytest.mark.usefixtures("renamed")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RETINAD_MODEL__OLD", "RETINAD_MODEL__SEED"),
        ("RETINAD_CAMERA__A__OLD", "RETINAD_CAMERA__A__FPS"),
        ("RETINAD_CAMERA__A__STREAM__OLD", "RETINAD_CAMERA__A__STREAM__WINDOW"),
    ],
)
def test_an_old_variable_is_an_error_that_names_the_new_one(old: str, new: str) -> None:
    (problem,) = merge({"camera": [{"name": "a"}]}, {old: "1"}).problems
    assert str(problem) == f"environment: {old}: was renamed (use `{new}`)"
