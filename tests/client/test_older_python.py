"""The client runs on Python 3.10, that of Ubuntu 22.04, ROS 2 Humble and JetPack 6."""

import ast
from pathlib import Path

import pytest

from retinad.client import Kind

ROOT = Path(__file__).parents[2]
SUBSCRIBE = (
    "app",
    "keygen",
    "mapping",
    "messages",
    "pose_words",
    "schema",
    "state",
    "subscribe",
    "switches",
    "version",
)
FILES = (
    *sorted((ROOT / "client").glob("*.py")),
    *(ROOT / "daemon" / "cli" / f"{name}.py" for name in SUBSCRIBE),
    *(ROOT / "daemon" / f"{name}.py" for name in ("__main__", "exit_codes", "versions")),
    *sorted((ROOT / "daemon" / "mapping").glob("*.py")),
    *(ROOT / "pipeline" / name for name in ("files/atomic.py", "files/tensor_reader.py", "geometry/pose.py")),
)
NEWER = {"StrEnum", "Self", "tomllib", "assert_never", "Never", "TaskGroup", "timeout", "BaseExceptionGroup", "UTC"}
"""Names that Python 3.11 added, as far as someone might use them here."""


def unguarded(tree: ast.AST) -> set[str]:
    """Names that a module imports, or takes from asyncio, outside an `if` (of TYPE_CHECKING, or of the version)."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If():
                continue
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=module, names=names) if module != "compat":
                found |= {name.name for name in names}
            case ast.Attribute(value=ast.Name(id="asyncio"), attr=attr):
                found.add(attr)
        found |= unguarded(node)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_the_client_needs_nothing_newer(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    assert unguarded(tree) & NEWER == set()


def test_words_of_messages_are_strings() -> None:
    assert (f"{Kind.END}", str(Kind.END), {"end": 1}[Kind.END], Kind("end")) == ("end", "end", 1, Kind.END)
