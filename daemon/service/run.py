"""`retinad run`: opens the log and the connection to systemd, loads the config, and runs the service."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.directories import DirectoryError, UnwritableError, held, make_private
from ..config.keys import error_text
from ..exit_codes import ExitCode
from ..kernel_cache import KernelCache, keep_kernels
from ..logs.redact import Redactor
from ..logs.setup import Log, open_log
from ..versions import find_versions
from .control import ControlFolder, open_control
from .startup_times import StartupTimer
from .systemd import Notifier

if TYPE_CHECKING:
    from ..config.load import ServiceConfig

_IMPORT_TIMEOUT_S = 120.0
"""Startup time, in seconds, requested from systemd: importing torch from a cold disk takes long."""

_log = logging.getLogger("retinad")


def run_service(path: Path, stack: ExitStack) -> ExitCode:
    """Run the service until it stops.

    Args:
        path: the config file.
        stack: closed when the command is over; keeps the log open until then.
    """
    begun_s = time.monotonic()
    stack.enter_context(_early_signals())
    log = stack.enter_context(open_log(Redactor()))
    notifier = stack.enter_context(Notifier())
    notifier.extend_timeout(_IMPORT_TIMEOUT_S)
    notifier.status("loading")
    try:
        cache = keep_kernels(stack)
    except DirectoryError as error:
        _log.error("%s", error)
        return error.code
    if cache.is_foreign:
        _log.error("%s", cache.problem)
        return ExitCode.NO_PERMISSION
    _report_cache(cache)
    return _load_and_serve(path, log, notifier, StartupTimer(cache, begun_s), stack)


def _report_cache(cache: KernelCache) -> None:
    if cache.problem is not None:
        _log.warning("kernel cache disabled: %s", cache.problem)
    if cache.removed:
        _log.warning("removed damaged compiled kernels", extra={"kernels": cache.removed})


@contextmanager
def _early_signals() -> Iterator[None]:
    """Signal handling until the service takes over: SIGHUP and SIGUSR1 wait, SIGTERM and SIGINT exit cleanly.

    Nothing needs closing yet. They exit directly, since an exception raised during imports may be caught by a library.
    """
    blocked = {signal.SIGHUP, signal.SIGUSR1}  # already blocked if the process started in `__main__`
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, frame: os._exit(ExitCode.OK))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _load_and_serve(path: Path, log: Log, notifier: Notifier, timer: StartupTimer, stack: ExitStack) -> ExitCode:
    # Imported here: the log must be open before libraries print anything during import.
    from retinad.pipeline.errors import AccessError, DeviceError, ModelError, PublishError, SettingError
    from retinad.pipeline.publish.publisher import check_free

    from ..config.load import ConfigError, load_config, load_publishing, read_document

    try:
        # Check first what needs no torch, whose import takes seconds.
        document = read_document(path)  # once: a pipe has nothing left for a second reader
        if (publishing := load_publishing(document)) is not None:
            make_private(publishing.runtime_dir)
            check_free(publishing.publish)
        config = load_config(document)
        _configure(log, config)
        for note in config.notes:
            _log.warning("%s", note)
        config = _with_states(config, stack)
        control = _open_control(config.runtime_dir, path, document.text, stack)
        return _serve(config, path, log, notifier, timer, control)
    except ConfigError as error:
        for problem in error.problems:
            place = {"key": problem.key or None, "line": problem.line, "column": problem.column}
            _log.error("%s", problem, extra={name: part for name, part in place.items() if part is not None})
        return ExitCode.CONFIG
    except SettingError as error:
        _log.error("%s", error)
        return ExitCode.CONFIG
    except DeviceError as error:
        _log.critical("device failed: %s", error)
        return ExitCode.FAULT
    except DirectoryError as error:
        _log.error("%s", error)
        return error.code
    except (ModelError, PublishError) as error:
        _log.error("%s", error_text(error))
        return ExitCode.NO_PERMISSION if isinstance(error, AccessError) else ExitCode.UNAVAILABLE


def _with_states(config: "ServiceConfig", stack: ExitStack) -> "ServiceConfig":
    """The config, with saving of streams disabled if their folder cannot be written to."""
    if config.states_dir is None:
        return config
    try:
        make_private(config.state_dir)
        make_private(config.states_dir)
        stack.enter_context(held(config.states_dir))
    except UnwritableError as error:
        _log.warning("the streams' memories are not kept: %s", error)
        return replace(config, keep_state=False)
    return config


def _open_control(runtime: Path, path: Path, text: str, stack: ExitStack) -> ControlFolder | None:
    try:
        return stack.enter_context(open_control(runtime, path, text))
    except OSError as error:
        _log.warning("`retinad reload` and `retinad renew` cannot find this service: %s", error)
        return None


def _serve(
    config: "ServiceConfig",
    path: Path,
    log: Log,
    notifier: Notifier,
    timer: StartupTimer,
    control: ControlFolder | None,
) -> ExitCode:
    # Imported here: torch takes seconds, and an invalid config is rejected without it.
    import anyio

    from .service import Dependencies, serve

    file = _ConfigFile(path)

    def configure(config: "ServiceConfig") -> None:
        _configure(log, config)
        if control is not None:
            control.reloaded(file.text)

    dependencies = Dependencies(
        load_config=file.load,
        configure=configure,
        versions=find_versions(),
        take_renewals=(lambda: None) if control is None else control.take_renewals,
        startup=timer,
    )
    return anyio.run(serve, config, dependencies, notifier)


class _ConfigFile:
    # Reads the config again, once per reload, and keeps the text of the last one that was loaded.
    def __init__(self, path: Path) -> None:
        self._path = path
        self.text = ""

    def load(self) -> "ServiceConfig":
        from ..config.load import load_config, read_document
        from .access import check_keys

        document = read_document(self._path)
        config = load_config(document)
        check_keys(config)
        self.text = document.text
        return config


def _configure(log: Log, config: "ServiceConfig") -> None:
    log.redactor.add(config.secrets)
    log.configure(config.log.level, config.log.form)
