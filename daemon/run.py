"""`retinad run`: opens the log and the line to systemd, loads the config, and hands over to the service."""

import logging
import signal
from contextlib import ExitStack
from pathlib import Path

from .exit_codes import ExitCode
from .log import Log, open_log
from .redact import Redactor
from .systemd import Notifier

_IMPORT_TIMEOUT_S = 120.0
"""Importing torch from a cold disk has been seen to take most of a minute."""

_log = logging.getLogger("retinad")


def run_service(path: Path, stack: ExitStack) -> ExitCode:
    """Run the service until it stops.

    Args:
        path: the config file.
        stack: what is closed when the command is over: the log stays open until then.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the service takes it: the config is about to be read anyway
    log = stack.enter_context(open_log(Redactor()))
    notifier = stack.enter_context(Notifier())
    notifier.extend_timeout(_IMPORT_TIMEOUT_S)
    notifier.status("loading")
    return _load_and_serve(path, log, notifier)


def _load_and_serve(path: Path, log: Log, notifier: Notifier) -> ExitCode:
    # Imported here: torch comes with these, and what it prints must find the log open.
    from functools import partial

    import anyio

    from retinad.pipeline.errors import DeviceError, ModelError, PublishError

    from .config import ConfigError, ServiceConfig, load_config
    from .directories import DirectoryError, make_private
    from .service import Edges, serve
    from .versions import find_versions

    def configure(config: ServiceConfig) -> None:
        log.redactor.add(config.secrets)
        log.configure(config.log.level, config.log.form)

    try:
        config = load_config(path)
        configure(config)
        make_private(config.runtime_dir)
        make_private(config.state_dir)
        edges = Edges(load_config=partial(load_config, path), configure=configure, versions=find_versions())
        return anyio.run(serve, config, edges, notifier)
    except ConfigError as error:
        for problem in error.problems:
            _log.error("%s", problem, extra={"key": problem.key, "line": problem.line, "column": problem.column})
        return ExitCode.CONFIG
    except DeviceError as error:
        _log.critical("the device failed: %s", error)
        return ExitCode.FAULT
    except (ModelError, PublishError, DirectoryError) as error:
        _log.error("%s", error)
        return ExitCode.UNAVAILABLE
