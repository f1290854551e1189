"""Finds, without creating anything, the folders, sockets and keys of a config that `run` would refuse to use."""

import os
from collections.abc import Callable, Iterator
from functools import partial

from retinad.pipeline.errors import AccessError, PublishError
from retinad.pipeline.publish.authorized_keys import AuthorizedKeys
from retinad.pipeline.publish.endpoints import check_access
from retinad.pipeline.publish.secret_key import load_secret_key

from ..config.directories import DirectoryError, UnwritableError, check_private, find_directories
from ..config.keys import error_text
from ..config.service_config import ServiceConfig
from ..exit_codes import ExitCode
from ..kernel_cache import VARIABLES, foreign_folder

Refusal = tuple[ExitCode, str]
"""The exit code with which `run` would end, and why."""


def access_refusals(config: ServiceConfig) -> Iterator[Refusal]:
    """What another user made, owns or could change, and folders that cannot be made, in the order of `run`."""
    checks: list[Callable[[], None]] = [
        _check_cache,
        partial(check_private, config.runtime_dir),
        *(partial(check_access, endpoint) for endpoint in config.publish.bound),
        partial(check_keys, config),
        partial(_check_kept, config),
    ]
    refusals = (_refusal(check) for check in checks)
    yield from dict.fromkeys(refusal for refusal in refusals if refusal is not None)


def check_keys(config: ServiceConfig) -> None:
    """Check the CURVE keys.

    Raises:
        PublishError: a key cannot be read; AccessError if others can change it.
    """
    if config.publish.curve is not None:
        load_secret_key(config.publish.curve.server_secret_key_file)
        AuthorizedKeys(config.publish.curve.authorized_keys_dir)


def _check_cache() -> None:
    if (problem := foreign_folder(os.environ)) is not None:
        raise DirectoryError(ExitCode.NO_PERMISSION, problem)
    try:
        check_private(find_directories(os.environ).cache)
    except DirectoryError as error:
        if error.code is ExitCode.NO_PERMISSION and not all(map(os.environ.get, VARIABLES)):
            raise  # any other folder that cannot be used is replaced by a temporary one


def _check_kept(config: ServiceConfig) -> None:
    if config.states_dir is not None:
        check_private(config.state_dir)
        check_private(config.states_dir)


def _refusal(check: Callable[[], None]) -> Refusal | None:
    try:
        check()
    except UnwritableError:  # `run` goes on without the folder, or another part of the config reports it
        return None
    except DirectoryError as error:
        return error.code, str(error)
    except PublishError as error:
        code = ExitCode.NO_PERMISSION if isinstance(error, AccessError) else ExitCode.UNAVAILABLE
        return code, error_text(error)
    return None
