"""The import graph of the source tree, read from its syntax trees; nothing is imported."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

Graph = Mapping[str, frozenset[str]]
"""The modules that each module imports, all under their full names."""

_WITH_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def module_name(path: Path, root: Path, prefix: str = "") -> str:
    """The full name of a file's module; a package's is that of its folder."""
    parts = path.relative_to(root).with_suffix("").parts
    return prefix + ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(files: Mapping[str, Path]) -> Graph:
    """Imports between the given modules, those within functions included.

    An import within a function runs too, only later: it hides a circle, it does not remove it. An import under
    `if TYPE_CHECKING:` never runs: it needs the other module's name, not the module.
    """
    return {
        name: frozenset(
            target
            for found in imports_of(path, name, running_only=True)
            if (target := _nearest(found, files)) not in (None, name)
        )
        for name, path in files.items()
    }


def imports_of(path: Path, name: str, *, running_only: bool = False) -> Iterator[str]:
    """Full names of what a module imports: `from ..a import b` in `x.y.z` yields `x.a.b`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in import_statements(path, running_only=running_only):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from (f"{imported_from(node, package)}.{alias.name}" for alias in node.names)


def import_statements(path: Path, *, running_only: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """All import statements of a file, or without those under `if TYPE_CHECKING:`."""
    nodes: list[ast.AST] = [parsed(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif running_only and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            nodes += node.orelse
        else:
            nodes += (child for child in ast.iter_child_nodes(node) if isinstance(child, _WITH_STATEMENTS))


def imported_from(node: ast.ImportFrom, package: str) -> str:
    """The full name of the module that a `from` statement in `package` names."""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def find_circle(graph: Graph) -> list[str]:
    """One import circle, with its first module repeated at the end; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for target in sorted(graph[name]):
                if circle := visit(target, [*path, name]):
                    return circle
            done.add(name)
        return []

    return next(filter(None, (visit(name, []) for name in sorted(graph))), [])


def nearest_parent(name: str, listed: Iterable[str]) -> str:
    """The listed package that a module is in, or the module itself if it is listed."""
    return max((parent for parent in listed if f"{name}.".startswith(f"{parent}.")), key=len)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _nearest(name: str, files: Mapping[str, Path]) -> str | None:
    """The module of this name, or the one that defines the name."""
    return next((known for known in (name, name.rpartition(".")[0]) if known in files), None)
