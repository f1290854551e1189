"""The tree is what the packaging says it is, and imports go one way: daemon -> pipeline -> kernels and client."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("client", "daemon", "kernels", "pipeline")
MAY_IMPORT = {
    "client": {"client"},
    "kernels": {"kernels"},
    "pipeline": {"pipeline", "kernels", "client"},
    "daemon": {"daemon", "pipeline", "client"},
}
ONE_FILE_EACH = {
    "cv2": {"pipeline/sources/opencv.py"},
    "flashinfer": {"pipeline/cache/backends/flashinfer.py"},
    "zmq": {"client/connection.py", "pipeline/publish/socket.py"},
}
"""Libraries whose errors are translated at one place; the client and the publisher each have theirs."""

SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(folder: Path) -> str:
    return "retinad." + ".".join(folder.relative_to(ROOT).parts)


def imports_of(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports; relative ones resolved."""
    package = name_of(path.parent).split(".")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*base, *(node.module or "").split(".")]).strip(".")


def test_the_packages_are_the_folders_on_disk() -> None:
    setuptools = PROJECT["tool"]["setuptools"]
    on_disk = {
        name_of(path.parent): str(path.parent.relative_to(ROOT)) for path in SOURCES if path.name == "__init__.py"
    }
    assert sorted(setuptools["packages"]) == sorted(on_disk)
    assert setuptools["package-dir"] == {name: path for name, path in on_disk.items() if "/" not in path}


def test_every_folder_with_code_is_a_package() -> None:
    assert {path.parent for path in SOURCES} == {path.parent for path in SOURCES if path.name == "__init__.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    for name in imports_of(path):
        first, _, rest = name.partition(".")
        assert first not in FOLDERS, f"{name}: import it as retinad.{name}"
        if first == "retinad":
            assert rest.split(".")[0] in MAY_IMPORT[folder], f"{folder} must not import {name}"
        if first in ONE_FILE_EACH:
            assert str(path.relative_to(ROOT)) in ONE_FILE_EACH[first], f"{first} has a file of its own"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_imports_stay_within_their_top_folder(path: Path) -> None:
    depth = len(path.relative_to(ROOT).parts) - 1
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= depth, f"line {node.lineno}: write retinad.{node.module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_says_why_it_exists(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("folder", FOLDERS)
def test_types_are_announced(folder: str) -> None:
    assert (ROOT / folder / "py.typed").exists()


def test_nothing_unpickles() -> None:
    unsafe = re.compile(
        r"pickle\.(loads?|dumps?|Unpickler)\b|_pyobj\b|weights_only\s*=\s*False|allow_pickle\s*=\s*True"
    )
    for path in SOURCES:
        assert not unsafe.search(path.read_text()), path
        assert not set(imports_of(path)) & {"dill", "marshal", "shelve"}, path
