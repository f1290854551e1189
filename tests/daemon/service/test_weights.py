"""The service with special weights: plain DINOv2 features, and weights so bad that no number is finite."""

import hashlib
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from retinad.client import FeaturesRecord, Record, StatusRecord
from retinad.daemon.config.load import load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.model.checkpoint import load_model

from ..in_process import InProcessService, until
from ..records import features_of, record_of
from ..service_rig import camera, receive_until, running, subscriber, write_config

SYNTHETIC = "synthetic:?fps=30&width=160&height=120"
DINO_ALONE = {
    "RETINAD_MODEL__DEPTH": "0",
    "RETINAD_MODEL__LAYERS": "[0]",
    "RETINAD_MODEL__CHANNELS": "384",
    "RETINAD_MODEL__HEADS": "6",
    "RETINAD_MODEL__PATCH_EMBED": "dinov2_vits14_reg",
}


@pytest.mark.usefixtures("_dino")
def test_dinov2_alone_is_published_under_its_files_name(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", SYNTHETIC), model=f'backbone_checkpoint = "{tmp_path}/dino.pth"')
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = features_of(receive_until(records_in, record_of("a", at_least=3)))
        assert service.stop()[0] == 0
    for record in records:
        assert not {"random_weights", "nan", "warmup"} & set(record.flags)
        assert record.model.weights == f"sha256:{hashlib.sha256((tmp_path / 'dino.pth').read_bytes()).hexdigest()}"
        assert {name: tensor.shape for name, tensor in record.tensors.items()} == {"layer0/patch": (3, 4, 384)}


@pytest.fixture
def _dino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in DINO_ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RETINAD_MODEL__TOKENS", '["patch"]')
    model, _ = load_model(load_config(write_config(tmp_path, camera("a", SYNTHETIC))).model)
    tensors = {name.removeprefix("patch_embed."): value for name, value in model.state_dict().items()}
    torch.save(tensors | {"mask_token": torch.zeros(1, 384)}, tmp_path / "dino.pth")


def test_weights_that_give_no_finite_number_are_flagged_and_counted_and_stop_nothing(tmp_path: Path) -> None:
    model, _ = load_model(load_config(write_config(tmp_path, camera("a", SYNTHETIC)), {}).model)
    tensors = model.state_dict()
    tensors["patch_embed.proj.bias"] = torch.full_like(tensors["patch_embed.proj.bias"], float("nan"))
    save_file(tensors, tmp_path / "bad.safetensors")
    config = write_config(tmp_path, camera("a", SYNTHETIC), model=f'checkpoint = "{tmp_path}/bad.safetensors"')

    async def act(records: list[Record]) -> None:
        await until(lambda: any(map(record_of("a", at_least=5), records)))
        os.kill(os.getpid(), signal.SIGTERM)

    service = InProcessService(tmp_path, config=config)
    assert service.run(act) == ExitCode.OK
    records = service.records
    published = features_of(records)
    assert all("nan" in record.flags for record in published)
    # A first block has two frames, and each block is the last of its memory.
    assert [(record.epoch, record.epoch_frame) for record in published[:6]] == [(n // 2, n % 2) for n in range(6)]
    assert all(("reset" in record.flags) == (n > 0 and n % 2 == 0) for n, record in enumerate(published[:6]))
    last = [record for record in records if isinstance(record, StatusRecord)][-1]
    assert last.nan_total == last.published_total == len(published)
    assert not any(isinstance(record, FeaturesRecord) and record.gaps for record in records)
