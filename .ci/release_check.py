"""Checks a release: builds the sdist and a wheel from it, installs the wheel in a fresh environment, and uses it there.

`make release-check` runs it. The checked files stay in dist/. pip decides which build of torch it installs.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
FOLDERS = ("client", "daemon", "kernels", "pipeline")
PACKAGED = ("*.py", "py.typed", "config.toml", "configs/*.json")
RECORDS = 20
TIMEOUT_S = 60.0

RECEIVE = f"""
import sys
from itertools import islice
from retinad.client import FeaturesRecord, Kind, Subscriber

with Subscriber(sys.argv[1], kinds=(Kind.FEATURES,), timeout_s={TIMEOUT_S}) as subscriber:
    for record in islice(subscriber, {RECORDS}):
        assert isinstance(record, FeaturesRecord)
        assert all(record[name].size for name in record.tensors)
print("received", record.seq + 1, "records of", record.camera, list(record.tensors))
"""


def main() -> None:
    for old in DIST.glob("retinad-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="retinad-release-") as name:
        folder = Path(name)
        wheel = build(folder)
        check_contents(wheel)
        programs = install(wheel, folder / "venv")
        check_main_job(programs, folder)
    print(f"{wheel.name}: built, installed and run")


def build(folder: Path) -> Path:
    """Build the sdist, and the wheel from nothing but the sdist, so that a file missing there is noticed."""
    backend = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}  # pyproject's [tool.distutils] is called experimental
    run([sys.executable, "-c", backend, str(DIST)], cwd=ROOT, env=quiet)
    with tarfile.open(one_of(DIST.glob("retinad-*.tar.gz"))) as sdist:
        sdist.extractall(folder / "source", filter="data")
    source = one_of((folder / "source").iterdir())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(DIST)]
    run([sys.executable, "-m", "pip", "wheel", *options, str(source)], cwd=folder, env=quiet)
    return one_of(DIST.glob("retinad-*.whl"))


def check_contents(wheel: Path) -> None:
    """The wheel holds all modules and data files of the packages, the license, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist()), "the license is missing"
    files = (path for folder in FOLDERS for pattern in PACKAGED for path in (ROOT / folder).rglob(pattern))
    expected = {f"retinad/{path.relative_to(ROOT)}" for path in files}
    assert found == expected, f"missing: {sorted(expected - found)}, unexpected: {sorted(found - expected)}"


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel with what the service needs, in the tested versions; return the folder of its programs."""
    venv.create(folder, with_pip=True)
    options = ["--quiet", "--no-compile", "--constraint", str(ROOT / "constraints-cpu.txt")]
    run([str(folder / "bin" / "pip"), "install", *options, f"{wheel}[server]"], cwd=folder)
    return folder / "bin"


def check_main_job(programs: Path, folder: Path) -> None:
    """Run the service with the packaged config on its synthetic scene, receive records, and stop it."""
    retinad = str(programs / "retinad")
    endpoint = f"ipc://{folder}/features.sock"
    environment = os.environ | {
        "RETINAD_PUBLISH__ENDPOINTS": json.dumps([endpoint]),
        "RETINAD_SERVICE__STATE_DIR": str(folder / "state"),
        "CACHE_DIRECTORY": str(folder / "cache"),
        "PYTHONSAFEPATH": "1",
    }
    (folder / "config.toml").write_text(run([retinad, "config"], cwd=folder))
    run([retinad, "check", "config.toml"], cwd=folder, env=environment)
    with subprocess.Popen([retinad, "run", "--config", "config.toml"], cwd=folder, env=environment) as service:
        try:
            received = run([str(programs / "python"), "-c", RECEIVE, endpoint], cwd=folder, env=environment)
            print(received, end="")
            began_s = time.monotonic()
            service.terminate()
            exit_code = service.wait(TIMEOUT_S)
        finally:
            service.kill()
    assert exit_code == 0, f"the service exited with {exit_code} after SIGTERM"
    print(f"stopped in {time.monotonic() - began_s:.1f} s")


def run(command: list[str], cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end; return what it printed, or fail as it does."""
    print("+", command[0], *(word for word in command[1:] if "\n" not in word), flush=True)
    return subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def one_of(paths: Iterable[Path]) -> Path:
    (path,) = paths
    return path


if __name__ == "__main__":
    main()
