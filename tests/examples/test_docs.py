"""The documentation: its links lead somewhere, its config snippets are valid, and its programs run."""

import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq
from pydantic import BaseModel

from retinad.client.query import decode_query, encode_answer
from retinad.daemon.config.tables import CameraTable, ModelTable, PublishTable, ServiceTable, StreamTable

from ..client.fake_service import fake_service
from ..client.posed import posed_message
from ..deadlines import scaled

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("systemd/*.md"), *ROOT.glob("examples/*.md")])
TABLES: dict[str, type[BaseModel]] = {
    "service": ServiceTable,
    "publish": PublishTable,
    "model": ModelTable,
    "stream": StreamTable,
    "camera": CameraTable,
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def snippets(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert broken_links(page) == []


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name(page) for page in PAGES if f"({name(page)})" not in readme and page.name != "README.md"] == []


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page, "toml")], ids=name)
def test_config_snippets_are_valid(page: Path) -> None:
    for snippet in snippets(page, "toml"):
        for key, value in tomllib.loads(snippet).items():
            for table in value if isinstance(value, list) else [value]:
                TABLES[key].model_validate(table)


def test_the_program_of_the_features_page_maps_a_patch() -> None:
    (code,) = snippets(ROOT / "docs" / "features.md", "python")
    with fake_service() as service:
        code = code.replace("tcp://127.0.0.1:5555", service.endpoint)
        with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as program:
            service.wait_for_subscriptions(2)
            service.features("door", 0)
            output, _ = program.communicate(timeout=30)
    # to_source of the fake service is the identity; its patches are 14 pixels wide.
    assert output == "door (640, 480) top left patch: [6.5 6.5]\n"


def test_the_program_of_the_geometry_page_makes_a_cloud(tmp_path: Path) -> None:
    code, _ = snippets(ROOT / "docs" / "geometry.md", "python")
    with fake_service() as service:
        code = code.replace("tcp://127.0.0.1:5555", service.endpoint)
        with subprocess.Popen(
            [sys.executable, "-uc", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as program:
            service.wait_for_subscriptions(1)
            for seq in range(3):
                service.send(*map(bytes, posed_message(service.instance, "robot", seq)))
            output, _ = program.communicate(timeout=30)
    assert output == "".join(f"{seq} at [0. 0. {seq}.] sees 400 points\n" for seq in range(3))
    assert np.load(tmp_path / "cloud.npy").shape == (12, 3)


def test_the_program_of_the_extract_page_reads_what_extract_writes(tmp_path: Path) -> None:
    (code,) = snippets(ROOT / "docs" / "extract.md", "python")
    retinad = [sys.executable, "-m", "retinad.daemon", "extract", "synthetic:?frames=2", "-o", "features"]
    environment = os.environ | {"RETINAD_STREAM__SCALE_FRAMES": "1"}
    subprocess.run([*retinad, "--preset", "tiny"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "0 0 (1, 512)\n1 33333333 (1, 512)\n"


def test_the_files_named_in_the_architecture_page_exist() -> None:
    """A path may be given from any folder on: `engine/outputs.py`, `outputs.py`."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w./-]+(?:\.(?:py|toml|md)|/))`", text))
    folders = ("client", "daemon", "docs", "examples", "kernels", "pipeline", "systemd", "tests")
    files = [name(path) for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [name(path) for path in ROOT.glob("*.*")]
    assert [path for path in sorted(named) if not any(is_named(file, path) for file in files)] == []


def is_named(file: str, path: str) -> bool:
    return f"/{file}".endswith(f"/{path}") or (path.endswith("/") and file.startswith(path))


def test_the_program_of_the_geometry_page_locates_a_picture(tmp_path: Path) -> None:
    _, code = snippets(ROOT / "docs" / "geometry.md", "python")
    (tmp_path / "picture.jpg").write_bytes(b"a picture")
    with answering_queries(tmp_path / "locate.sock") as asked:
        code = code.replace("/run/retinad/locate.sock", str(tmp_path / "locate.sock"))
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert asked == [("robot", b"a picture")]
    assert done.stdout.startswith("[0. 0. 3.] GeometryHeader(unit='stream'")


@contextmanager
def answering_queries(path: Path) -> Iterator[list[tuple[str, bytes]]]:
    """A service that answers one query with the pose of the third record of `posed_message`."""
    asked: list[tuple[str, bytes]] = []

    def answer() -> None:
        with zmq.Context() as context, context.socket(zmq.REP) as socket:
            socket.bind(f"ipc://{path}")
            query = decode_query(socket.recv_multipart())
            asked.append((query.header.camera, query.picture))
            socket.send_multipart(encode_answer(posed_message("0" * 16, "robot", 3)))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield asked
    finally:
        thread.join(scaled(30))
