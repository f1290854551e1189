"""The import graph sees every import that runs, so that the layout tests can fail."""

from pathlib import Path

import pytest

from .import_graph import Graph, find_circle, import_graph, module_name, nearest_parent


def graph_of(folder: Path, **modules: str) -> Graph:
    """The graph of a package `p` with these modules."""
    (folder / "p").mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (folder / "p" / f"{name}.py").write_text(text)
    return import_graph({module_name(path, folder): path for path in sorted(folder.rglob("*.py"))})


@pytest.mark.parametrize("text", ["import p.b", "from p import b", "from .b import name", "from . import b"])
def test_every_form_of_import_is_an_arrow(tmp_path: Path, text: str) -> None:
    assert graph_of(tmp_path, a=text, b="name = 1") == {"p": set(), "p.a": {"p.b"}, "p.b": set()}


def test_an_import_within_a_function_closes_a_circle(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, a="from . import b", b="def f():\n    from .c import g", c="import p.a")
    assert find_circle(graph) == ["p.a", "p.b", "p.c", "p.a"]


def test_an_import_for_types_only_is_no_arrow(tmp_path: Path) -> None:
    only_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a\nelse:\n    from . import c"
    graph = graph_of(tmp_path, a="from . import b", b=only_types, c="")
    assert graph["p.b"] == {"p.c"}
    assert find_circle(graph) == []


def test_a_module_belongs_to_its_nearest_listed_parent() -> None:
    found = [nearest_parent(name, ("p", "p.a", "p.a.x")) for name in ("p", "p.b", "p.a", "p.a.x.y", "p.ab")]
    assert found == ["p", "p", "p.a", "p.a.x", "p"]
