"""A job without cameras uses the model and the stream of a config, and ignores the rest."""

from pathlib import Path

import pytest

from retinad.daemon.config.job import Override, load_job_config
from retinad.daemon.config.load import ConfigError, load_config
from retinad.pipeline.model.presets import TINY

SERVICE = """
[publish]
nonsense = true
[model]
preset = "tiny"
pool = 2
[stream]
window = 5
[[camera]]
name = "a"
source = "credential:nobody-passed-it"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(SERVICE)
    return tmp_path / "config.toml"


def test_model_and_stream_equal_those_of_the_service(path: Path) -> None:
    path.write_text(SERVICE.replace("nonsense = true", "").replace("credential:nobody-passed-it", "synthetic:"))
    service, job = load_config(path, {}), load_job_config(path, (), {})
    assert (job.model, job.stream) == (service.model, service.cameras[0].stream)


def test_cameras_and_credentials_are_ignored(path: Path) -> None:
    assert load_job_config(path, (), {"RETINAD_CAMERA__A__FPS": "x"}).stream.window == 5


def test_options_override_the_environment_which_overrides_the_file(path: Path) -> None:
    environment = {"RETINAD_MODEL__POOL": "3", "RETINAD_STREAM__WINDOW": "6"}
    job = load_job_config(path, (Override("--pool", "model", "pool", 4),), environment)
    assert (job.model.output.pool, job.stream.window) == (4, 6)
    assert load_job_config(path, (), environment).model.output.pool == 3


def test_without_a_file_the_defaults_apply() -> None:
    job = load_job_config(None, (Override("--preset", "model", "preset", "tiny"),), {})
    assert (job.model.name, job.stream) == ("tiny", TINY.stream)


def test_every_problem_has_its_place(path: Path) -> None:
    path.write_text(SERVICE.replace("window = 5", "window = 0"))
    with pytest.raises(ConfigError) as caught:
        load_job_config(path, (Override("--pool", "model", "pool", 0),), {"RETINAD_MODEL__POL": "1"})
    assert str(caught.value).splitlines() == [
        "environment: RETINAD_MODEL__POL: names no key of the config (did you mean `RETINAD_MODEL__POOL`?)",
        "command line: --pool: expected at least 1, got 0",
        f"{path}:8:1: stream.window: expected at least 1, got 0",
    ]
