"""`retinad run`: opens the log and the line to systemd, loads the config, and hands over to the service."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.directories import DirectoryError, held, make_private
from ..config.keys import error_text
from ..exit_codes import ExitCode
from ..kernel_cache import KernelCache, keep_kernels
from ..logs.redact import Redactor
from ..logs.setup import Log, open_log
from ..versions import find_versions
from .startup_times import StartUp
from .systemd import Notifier

if TYPE_CHECKING:
    from ..config.load import ServiceConfig

_IMPORT_TIMEOUT_S = 120.0
"""Time asked of systemd for importing torch from a cold disk."""

_log = logging.getLogger("retinad")


def run_service(path: Path, stack: ExitStack) -> ExitCode:
    """Run the service until it stops.

    Args:
        path: the config file.
        stack: what is closed when the command is over: the log stays open until then.
    """
    begun_s = time.monotonic()
    stack.enter_context(_early_signals())
    log = stack.enter_context(open_log(Redactor()))
    notifier = stack.enter_context(Notifier())
    notifier.extend_timeout(_IMPORT_TIMEOUT_S)
    notifier.status("loading")
    cache = keep_kernels(stack)
    _report_cache(cache)
    return _load_and_serve(path, log, notifier, StartUp(cache, begun_s), stack)


def _report_cache(cache: KernelCache) -> None:
    if cache.problem is not None:
        _log.warning("compiled kernels are not kept: %s", cache.problem)
    if cache.removed:
        _log.warning("compiled kernels were damaged and are removed", extra={"kernels": cache.removed})


@contextmanager
def _early_signals() -> Iterator[None]:
    """What signals do until the service takes them: SIGHUP and SIGUSR1 wait, SIGTERM and SIGINT are a clean end.

    There is nothing yet that would need closing. An exception would not do: libraries are being imported, and some of
    them catch what they do not know.
    """
    held_back = {signal.SIGHUP, signal.SIGUSR1}  # as `__main__` has done, if it began there
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, frame: os._exit(ExitCode.OK))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _load_and_serve(path: Path, log: Log, notifier: Notifier, start_up: StartUp, stack: ExitStack) -> ExitCode:
    # Imported here: what libraries print while they are imported must find the log open.
    from retinad.pipeline.errors import DeviceError, ModelError, PublishError
    from retinad.pipeline.publish.publisher import check_free

    from ..config.load import ConfigError, load_config, load_publishing

    try:
        # First what can be wrong and takes no torch to find out, which takes seconds to import.
        if (publishing := load_publishing(path)) is not None:
            make_private(publishing.runtime_dir)
            check_free(publishing.publish)
        config = load_config(path)
        _configure(log, config)
        make_private(config.state_dir)
        if config.states_dir is not None:
            make_private(config.states_dir)
            stack.enter_context(held(config.states_dir))
        return _serve(config, path, log, notifier, start_up)
    except ConfigError as error:
        for problem in error.problems:
            place = {"key": problem.key or None, "line": problem.line, "column": problem.column}
            _log.error("%s", problem, extra={name: part for name, part in place.items() if part is not None})
        return ExitCode.CONFIG
    except DeviceError as error:
        _log.critical("the device failed: %s", error)
        return ExitCode.FAULT
    except (ModelError, PublishError, DirectoryError) as error:
        _log.error("%s", error_text(error))
        return ExitCode.UNAVAILABLE


def _serve(config: "ServiceConfig", path: Path, log: Log, notifier: Notifier, start_up: StartUp) -> ExitCode:
    # Imported here: torch takes seconds, and a wrong config is refused without it.
    import anyio

    from ..config.load import load_config
    from .service import Dependencies, serve

    dependencies = Dependencies(
        load_config=partial(load_config, path),
        configure=partial(_configure, log),
        versions=find_versions(),
        start_up=start_up,
    )
    return anyio.run(serve, config, dependencies, notifier)


def _configure(log: Log, config: "ServiceConfig") -> None:
    log.redactor.add(config.secrets)
    log.configure(config.log.level, config.log.form)
