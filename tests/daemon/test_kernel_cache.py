"""Compiled kernels are kept in the service's folder, or the operator's; problems there stop no command."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from retinad.daemon.cli.app import run_command
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.kernel_cache import VARIABLES, keep_kernels


def write(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_every_library_gets_its_folder_in_the_cache_directory(tmp_path: Path) -> None:
    environment = {"CACHE_DIRECTORY": str(tmp_path / "cache")}
    with ExitStack() as stack:
        cache = keep_kernels(stack, environment)
    assert (cache.folder, cache.problem, cache.removed) == (tmp_path / "cache", None, 0)
    assert {name: environment[name] for name in VARIABLES} == {
        "TRITON_CACHE_DIR": f"{tmp_path}/cache/triton",
        "FLASHINFER_WORKSPACE_BASE": f"{tmp_path}/cache/flashinfer",
        "CUDA_CACHE_PATH": f"{tmp_path}/cache/cuda",
    }
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700, "nobody else may write code that the service runs"


def test_variables_of_the_operator_are_kept(tmp_path: Path) -> None:
    environment = {"CACHE_DIRECTORY": str(tmp_path / "cache"), "TRITON_CACHE_DIR": "/mine"}
    with ExitStack() as stack:
        keep_kernels(stack, environment)
    assert (environment["TRITON_CACHE_DIR"], environment["CUDA_CACHE_PATH"]) == ("/mine", f"{tmp_path}/cache/cuda")


def test_no_folder_is_created_if_the_operator_has_set_all_variables(tmp_path: Path) -> None:
    environment = dict.fromkeys(VARIABLES, "/mine") | {"CACHE_DIRECTORY": str(tmp_path / "cache")}
    with ExitStack() as stack:
        cache = keep_kernels(stack, environment)
    assert (cache.folder, cache.problem, cache.compiled()) == (None, None, 0)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("folder", ["file", "file/below", "link"])
def test_a_folder_that_cannot_be_used_is_named_and_replaced_by_a_temporary_one(folder: str, tmp_path: Path) -> None:
    write(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    environment = {"CACHE_DIRECTORY": str(tmp_path / folder)}
    with ExitStack() as stack:
        cache = keep_kernels(stack, environment)
        assert str(tmp_path / folder) in str(cache.problem)
        assert cache.folder is not None
        assert os.access(cache.folder, os.W_OK)
        assert environment["TRITON_CACHE_DIR"] == f"{cache.folder}/triton"
    assert not cache.folder.exists(), "it is removed when the service stops"


def test_only_damaged_kernels_are_removed(tmp_path: Path) -> None:
    good = write(tmp_path / "triton" / "A" / "kernel.cubin")
    lock = write(tmp_path / "triton" / "A" / "lock", b"")
    described = write(tmp_path / "triton" / "B" / "__grp__kernel.json")
    write(tmp_path / "triton" / "B" / "kernel.cubin", b"")
    write(tmp_path / "flashinfer" / ".cache" / "ops" / "C" / "ops.so", b"")
    elsewhere = write(tmp_path / "other" / "empty.so", b"")
    with ExitStack() as stack:
        cache = keep_kernels(stack, {"CACHE_DIRECTORY": str(tmp_path)})
    assert cache.removed == 2
    assert [good.exists(), lock.exists(), elsewhere.exists(), described.exists()] == [True, True, True, False]
    assert not (tmp_path / "flashinfer" / ".cache" / "ops" / "C").exists()
    assert cache.compiled() == 1


def test_compiled_kernels_are_counted_in_every_subfolder(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cache = keep_kernels(stack, {"CACHE_DIRECTORY": str(tmp_path)})
    assert cache.compiled() == 0
    write(tmp_path / "triton" / "A" / "kernel.cubin")
    write(tmp_path / "triton" / "A" / "kernel.ptx")
    write(tmp_path / "flashinfer" / ".cache" / "ops" / "C" / "ops.so")
    assert cache.compiled() == 2


def test_triton_keeps_its_kernels_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    environment = {"CACHE_DIRECTORY": str(tmp_path)}
    with ExitStack() as stack:
        keep_kernels(stack, environment)
    monkeypatch.setenv("TRITON_CACHE_DIR", environment["TRITON_CACHE_DIR"])
    assert knobs.cache.dir == f"{tmp_path}/triton"


def test_flashinfer_keeps_its_kernels_there(tmp_path: Path) -> None:
    pytest.importorskip("flashinfer")
    with ExitStack() as stack:
        keep_kernels(stack, environment := {**os.environ, "CACHE_DIRECTORY": str(tmp_path)})
    script = "from flashinfer.jit import env; print(env.FLASHINFER_WORKSPACE_DIR)"
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.startswith(f"{tmp_path}/flashinfer/")


def test_no_library_that_compiles_is_imported_before_its_variable_is_set() -> None:
    script = (
        "import sys, retinad.daemon.service.run; print(sorted({'torch', 'triton', 'flashinfer'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["bench", "--size", "big"], ["extract", "/nowhere.mp4", "-o", "/nowhere/out"]])
def test_commands_that_run_the_model_keep_kernels_where_the_service_does(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RETINAD_MODEL__PRESET", "tiny")
    assert run_command(arguments) != ExitCode.OK
    assert os.environ["TRITON_CACHE_DIR"] == f"{tmp_path}/cache/triton"
    monkeypatch.setenv("CACHE_DIRECTORY", str(write(tmp_path / "file")))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    assert run_command(arguments) != ExitCode.OK
    assert f"not kept: {tmp_path}/file is not a folder" in capsys.readouterr().err


def test_a_folder_of_the_operator_to_which_every_user_can_write_is_refused(tmp_path: Path) -> None:
    """Code is run from it."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "open"), "CACHE_DIRECTORY": str(tmp_path / "cache")}
    with ExitStack() as stack:
        cache = keep_kernels(stack, environment)
    assert cache.is_foreign
    assert f"TRITON_CACHE_DIR: every user can replace what is in {tmp_path}/open" in str(cache.problem)
    assert not (tmp_path / "cache").exists()
