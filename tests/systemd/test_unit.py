"""The systemd unit is valid, and sandboxed as far as the GPU and the cameras allow."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.kernel_cache import VARIABLES

from ..deadlines import scaled

FOLDER = Path(__file__).parents[2] / "systemd"
UNIT = FOLDER / "retinad.service"

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with an existing program, which `verify` checks for."""
    unit = tmp_path / "retinad.service"
    unit.write_text(UNIT.read_text().replace("/opt/retinad/bin/retinad", "/bin/true"))
    return unit


@pytest.fixture
def settings() -> dict[str, list[str]]:
    """The values of each key, over all sections."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=scaled(30), check=False
    )


@needs_analyze
def test_systemd_accepts_the_unit_without_complaint(installed: Path) -> None:
    result = analyze("verify", "--man=no", str(installed))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@needs_analyze
def test_the_unit_is_rated_as_well_sandboxed(installed: Path) -> None:
    result = analyze("security", "--offline=true", "--threshold=30", str(installed))
    assert result.returncode == 0, result.stdout + result.stderr


def test_errors_that_a_restart_cannot_fix_do_not_restart_the_service(settings: dict[str, list[str]]) -> None:
    assert settings["Restart"] == ["on-failure"]
    permanent = {ExitCode.CONFIG, ExitCode.USAGE, ExitCode.NO_PERMISSION}
    assert {int(code) for code in settings["RestartPreventExitStatus"][0].split()} == permanent
    # Restarts at this pace must be able to reach the limit.
    paced = int(settings["RestartSec"][0]) * int(settings["StartLimitBurst"][0])
    assert paced < int(settings["StartLimitIntervalSec"][0])


def test_the_unit_speaks_the_protocol_of_the_service(settings: dict[str, list[str]]) -> None:
    assert settings["Type"] == ["notify"]
    assert settings["NotifyAccess"] == ["main"]
    assert settings["KillMode"] == ["mixed"]
    assert settings["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert settings["ExecStart"] == ["/opt/retinad/bin/retinad run --config /etc/retinad/config.toml"]
    assert any("PYTHONSAFEPATH=1" in value for value in settings["Environment"])


def test_the_unit_allows_gpu_cameras_and_compiled_code(settings: dict[str, list[str]]) -> None:
    assert settings["DevicePolicy"] == ["closed"]
    assert {"char-nvidia rw", "char-nvidia* rw", "char-video4linux rw"} <= set(settings["DeviceAllow"])
    assert settings["PrivateDevices"] == settings["MemoryDenyWriteExecute"] == settings["PrivateUsers"] == ["no"]
    assert settings["SupplementaryGroups"] == ["video render"]


def test_the_unit_sets_no_config_variable(settings: dict[str, list[str]]) -> None:
    assert not any("RETINAD_" in value for value in settings["Environment"])


def test_the_unit_has_a_cache_directory_and_sets_no_kernel_cache_variables(
    settings: dict[str, list[str]],
) -> None:
    assert settings["CacheDirectory"] == ["retinad"]
    assert not any(name in value for value in settings["Environment"] for name in VARIABLES)


def test_sysusers_creates_the_user_of_the_unit(settings: dict[str, list[str]]) -> None:
    user = (FOLDER / "sysusers.conf").read_text()
    assert f"u {settings['User'][0]} " in user
    for group in settings["SupplementaryGroups"][0].split():
        assert f"m {settings['User'][0]} {group}\n" in user
