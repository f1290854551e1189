"""A file that this user may not read is said to be that, and not to be missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from retinad.pipeline.files.readable import why_unreadable

CAPABILITIES = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""In front of a command, takes away what lets root read everything."""

PROGRAMS = {
    "weights": "from retinad.pipeline.model.weight_files import read_state_dict as read",
    "note": "from retinad.pipeline.model.weight_files import file_note as read",
    "stream": "from retinad.pipeline.files.state_file import open_state_file\n"
    "def read(path):\n    with open_state_file(path): pass",
}


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads everything")
@pytest.mark.parametrize("what", PROGRAMS)
def test_weights_and_saved_streams_of_another_user_are_said_to_be_closed(tmp_path: Path, what: str) -> None:
    """safetensors 0.8.0 reports each failure to open a file as a missing file."""
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    path.chmod(0)
    code = f"""
import sys
from pathlib import Path
from retinad.pipeline.errors import PipelineError
{PROGRAMS[what]}
try: read(Path(sys.argv[1]))
except PipelineError as error: print(error)
"""
    command = [*(CAPABILITIES if os.geteuid() == 0 else []), sys.executable, "-c", code, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"w.safetensors: it may not be read by this user (uid {os.geteuid()}): its owner is uid" in said


def test_what_can_be_read_is_and_anything_else_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert why_unreadable(tmp_path / "file") is None
    assert why_unreadable(tmp_path / "pipe") == why_unreadable(tmp_path) == "it is not a regular file"
    assert why_unreadable(tmp_path / "link") == why_unreadable(tmp_path / "none") == "No such file or directory"
    assert why_unreadable(tmp_path / "file" / "in") == "Not a directory"
    assert why_unreadable(tmp_path / ("x" * 300)) == "File name too long"
