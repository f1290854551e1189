"""The tree matches the packaging, and imports go one way: daemon -> pipeline -> kernels and client."""

import ast
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from .import_graph import (
    Graph,
    find_circle,
    import_graph,
    import_statements,
    imports_of,
    module_name,
    nearest_parent,
    parsed,
)

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
FOLDERS = ("client", "daemon", "kernels", "pipeline")
MAY_IMPORT = {
    "client": {"client"},
    "kernels": {"kernels"},
    "pipeline": {"pipeline", "kernels", "client"},
    "daemon": {"daemon", "pipeline", "client"},
}
LEVELS = (
    {"kernels"},
    {"kernels.attention", "kernels.fused", "kernels.kda"},
    {"client"},
    {"pipeline"},
    {"pipeline.files", "pipeline.geometry", "pipeline.sources"},
    {"pipeline.capture", "pipeline.model", "pipeline.publish"},
    {"pipeline.cache"},
    {"pipeline.cache.backends"},
    {"pipeline.engine"},
    {"pipeline.pump"},
    {"daemon"},
    {"daemon.logs"},
    {"daemon.config"},
    {"daemon.kernel_cache"},
    {"daemon.service"},
    {"daemon.bench", "daemon.extract", "daemon.mapping"},
    {"daemon.cli"},
    {"daemon.__main__"},
)
"""Packages by level, from the bottom up. Each imports only from levels below its own, so no circle can form.

A listed subpackage does not count as part of its parent. The roots of `pipeline` and `daemon` hold what the levels
above them share; a module there that uses those levels in turn is listed too.
"""

ONE_FILE_EACH = {
    "cv2": {"daemon/mapping/png.py", "pipeline/sources/opencv.py"},
    "flashinfer": {"pipeline/cache/backends/flashinfer.py"},
    "zmq": {
        "client/connection.py",
        "client/locator.py",
        "pipeline/publish/monitor.py",
        "pipeline/publish/query_socket.py",
        "pipeline/publish/socket.py",
    },
}
"""Libraries whose errors are translated at one place; the client and the publisher each have theirs.
PNG files of plots are drawn without the readers of sources."""

OWNERS = {
    "torch": {"kernels", "pipeline"},
    "triton": {"kernels"},
    "safetensors": {"pipeline"},
    "pydantic": {"daemon"},
    "structlog": {"daemon"},
    "typer": {"daemon"},
}
"""Libraries that only these top-level folders import."""

UNMIRRORED_TESTS = {"benchmarks", "data", "soak"}
"""Folders of tests/ that test the whole product or hold no tests."""

SOURCES = {
    module_name(path, ROOT, "retinad."): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
}
TEST_FILES = {module_name(path, ROOT): path for path in sorted(TESTS.rglob("*.py"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def require_none(faults: Iterable[str]) -> None:
    """Fail with one line for each offender."""
    if lines := "\n".join(faults):
        pytest.fail(lines, pytrace=False)


def test_the_packages_are_the_folders_on_disk() -> None:
    setuptools = PROJECT["tool"]["setuptools"]
    on_disk = {name: short(path.parent) for name, path in SOURCES.items() if path.name == "__init__.py"}
    assert sorted(setuptools["packages"]) == sorted(on_disk)
    assert setuptools["package-dir"] == {name: path for name, path in on_disk.items() if "/" not in path}


def test_every_folder_with_code_is_a_package() -> None:
    paths = set(SOURCES.values())
    assert {path.parent for path in paths} == {path.parent for path in paths if path.name == "__init__.py"}


def test_imports_go_one_way() -> None:
    require_none([fault for name, path in SOURCES.items() for fault in import_faults(name, path)])


def import_faults(name: str, path: Path) -> list[str]:
    """Imports of bare names, of higher top-level folders, and of libraries that belong elsewhere."""
    folder = path.relative_to(ROOT).parts[0]
    faults: list[str] = []
    for found in sorted(set(imports_of(path, name))):
        first, _, rest = found.partition(".")
        if first in FOLDERS:
            faults.append(f"{short(path)}: write retinad.{found}")
        if first == "retinad" and rest.split(".")[0] not in MAY_IMPORT[folder]:
            faults.append(f"{short(path)}: {folder} must not import {found}")
        if short(path) not in ONE_FILE_EACH.get(first, {short(path)}):
            faults.append(f"{short(path)}: only {sorted(ONE_FILE_EACH[first])} may import {first}")
        if folder not in OWNERS.get(first, {folder}):
            faults.append(f"{short(path)}: only {sorted(OWNERS[first])} may import {first}")
    return faults


def test_relative_imports_stay_within_their_top_folder() -> None:
    require_none(
        f"{short(path)}:{node.lineno}: write retinad.{node.module}"
        for path in SOURCES.values()
        for node in import_statements(path)
        if isinstance(node, ast.ImportFrom) and node.level > len(path.relative_to(ROOT).parts) - 1
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_circle(import_graph(SOURCES)) == []


def test_every_package_is_on_one_level() -> None:
    listed = [name for level in LEVELS for name in level]
    folders = {name.removeprefix("retinad.") for name, path in SOURCES.items() if path.name == "__init__.py"}
    assert len(listed) == len(set(listed))
    assert folders <= set(listed)
    assert {f"retinad.{name}" for name in listed} <= SOURCES.keys()


def test_packages_import_only_from_lower_levels() -> None:
    require_none(upward_imports(import_graph(SOURCES)))


def upward_imports(graph: Graph) -> list[str]:
    """Imports from another package that is not on a lower level."""
    level_of = {f"retinad.{name}": number for number, level in enumerate(LEVELS) for name in level}
    faults: list[str] = []
    for name, targets in graph.items():
        package = nearest_parent(name, level_of)
        for target in sorted(targets):
            other = nearest_parent(target, level_of)
            if other != package and level_of[other] >= level_of[package]:
                faults.append(f"{name} imports {target}")
    return faults


def test_every_file_says_why_it_exists() -> None:
    require_none(short(path) for path in SOURCES.values() if not ast.get_docstring(parsed(path)))


def test_types_are_announced() -> None:
    assert [folder for folder in FOLDERS if not (ROOT / folder / "py.typed").exists()] == []


def test_no_test_module_imports_another() -> None:
    """What tests share is in helper modules and conftest files."""
    require_none(
        f"{name} imports {target}"
        for name, targets in import_graph(TEST_FILES).items()
        for target in sorted(targets)
        if target.rpartition(".")[2].startswith("test_")
    )


def test_folders_of_tests_mirror_the_source() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TEST_FILES.values()} - {Path()}
    mirrored = {folder for folder in folders if folder.parts[0] not in UNMIRRORED_TESTS}
    require_none(str(folder) for folder in sorted(mirrored) if not (ROOT / folder).is_dir())


def test_nothing_unpickles() -> None:
    unsafe = re.compile(
        r"pickle\.(loads?|dumps?|Unpickler)\b|_pyobj\b|weights_only\s*=\s*False|allow_pickle\s*=\s*True"
    )
    modules = {"dill", "marshal", "shelve"}
    for name, path in SOURCES.items():
        assert not unsafe.search(path.read_text()), path
        assert not {found.split(".")[0] for found in imports_of(path, name)} & modules, path


def test_the_config_in_the_package_is_a_link_to_the_documented_one() -> None:
    """A copy would grow old: editors that write through a link may replace it."""
    assert (ROOT / "daemon" / "config.toml").readlink() == Path("../config.toml")
