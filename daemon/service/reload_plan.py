"""The plan of a reload: what a new config changes, and which cameras lose their memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace

from retinad.pipeline.config import CameraConfig, ModelConfig
from retinad.pipeline.config_diff import differences

from ..config.keys import config_key
from ..config.service_config import ServiceConfig


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The changes of a reload.

    Attributes:
        added, removed: names of cameras.
        reopened: changed keys of the cameras whose source is opened again, with the stream's memory kept.
        restarted: changed keys of the cameras that start over with an empty memory.
        at_restart: changed keys that take effect only when the service is restarted.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    reopened: Mapping[str, tuple[str, ...]]
    restarted: Mapping[str, tuple[str, ...]]
    at_restart: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """The plan for people, one line for each camera and setting; no values, which may be secret."""
        yield from (f"camera {name}: is added" for name in self.added)
        yield from (f"camera {name}: is removed, its memory is dropped" for name in self.removed)
        for name, keys in self.reopened.items():
            yield f"camera {name}: its source is opened again, its memory is kept ({', '.join(keys)})"
        for name, keys in self.restarted.items():
            yield f"camera {name}: starts over, its memory is dropped ({', '.join(keys)})"
        yield from (f"{key}: stays as it was until the service is restarted" for key in self.at_restart)


def plan_reload(old: ServiceConfig, new: ServiceConfig) -> ReloadPlan:
    """The changes that a service makes when it runs with the config `old` and loads the config `new`."""
    applied = applicable(old, new)
    before, after = ({camera.name: camera for camera in config.cameras} for config in (old, applied))
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    keys = {name: _changed_keys(before[name], after[name]) for name in changed}
    kept = {name for name in changed if keeps_memory(before[name], after[name])}
    return ReloadPlan(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        reopened={name: keys[name] for name in changed if name in kept},
        restarted={name: keys[name] for name in changed if name not in kept},
        at_restart=tuple(different_keys(applied, new)),
    )


def applicable(old: ServiceConfig, new: ServiceConfig) -> ServiceConfig:
    """The new config, with the old values of all keys that take effect only at a restart.

    A camera that now asks for outputs which the running model does not have keeps its old ones until then.
    """
    before = {camera.name: camera for camera in old.cameras}
    return replace(
        new,
        cameras=tuple(_with_known_outputs(camera, before.get(camera.name), old.model) for camera in new.cameras),
        publish=old.publish,
        model=old.model,
        state_dir=old.state_dir,
        keep_state=old.keep_state,
        keep_state_timeout_s=old.keep_state_timeout_s,
        keep_state_max_age_s=old.keep_state_max_age_s,
        runtime_dir=old.runtime_dir,
        exit_when_done=old.exit_when_done,
    )


def _with_known_outputs(camera: CameraConfig, before: CameraConfig | None, model: ModelConfig) -> CameraConfig:
    if before is None or camera.outputs is None or set(camera.outputs) <= set(model.outputs):
        return camera
    return replace(camera, outputs=before.outputs)


def keeps_memory(old: CameraConfig, new: CameraConfig) -> bool:
    """Whether the model sees the same frames with the new config, so that a stream's memory stays valid."""
    return new.view.fingerprint == old.view.fingerprint and new == replace(
        old,
        view=new.view,
        fps=new.fps,
        queue_frames=new.queue_frames,
        connect_timeout_s=new.connect_timeout_s,
        stall_timeout_s=new.stall_timeout_s,
        retry=new.retry,
        transport=new.transport,
    )


def different_keys(old: object, new: object, prefix: str = "") -> Iterator[str]:
    """Keys of the fields in which two configs of the same kind differ, except cameras and secrets."""
    for field in fields(old):  # type: ignore[arg-type]  # only called with dataclasses
        ours, theirs = getattr(old, field.name), getattr(new, field.name)
        if ours == theirs or not field.compare or field.name in ("cameras", "disabled", "secrets"):
            continue
        name = f"{prefix}{field.name}"
        if is_dataclass(ours) and type(ours) is type(theirs):
            yield from different_keys(ours, theirs, f"{name}.")
        else:
            yield config_key(name if "." in name else f"service.{name}")


def _changed_keys(old: CameraConfig, new: CameraConfig) -> tuple[str, ...]:
    keys = (config_key(difference.field) for difference in differences(old, new))
    return tuple(key.removeprefix("model.") for key in keys)
