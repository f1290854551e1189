"""Reloads the config while the service runs. A config that is invalid or unreadable changes nothing."""

from collections.abc import Callable
from dataclasses import replace

import anyio
import structlog

from retinad.pipeline.errors import ModelError

from ..config.load import ConfigError, ServiceConfig
from .cameras import Cameras
from .events import different_keys, log_reload
from .monitor import StateMonitor
from .signals import Request
from .systemd import Notifier

_READ_S = 10.0
"""Limit for reading the config. A pipe or a dead file server may block forever, which must not block later reloads."""

_PAUSE_S = 0.5
"""Pause between reloads: all requests that arrive during it become one reload."""

_log = structlog.get_logger("retinad")


class Reloader:
    """Owns the config that is in effect.

    Args:
        config: the config that the service started with.
        load_config: reads the config again; runs in a thread.
        configure: applies the parts of a config that lie outside the service: log level, secrets to mask.
        notifier: systemd, which is notified of each reload.

    Attributes:
        config: the config in effect.
    """

    def __init__(
        self,
        config: ServiceConfig,
        load_config: Callable[[], ServiceConfig],
        configure: Callable[[ServiceConfig], None],
        notifier: Notifier,
    ) -> None:
        self.config = config
        self._load_config = load_config
        self._configure = configure
        self._notifier = notifier

    async def run(self, request: Request, cameras: Cameras, monitor: StateMonitor) -> None:
        """Reload whenever it is asked for, forever.

        Args:
            request: asks for a reload.
            cameras: started, stopped and replaced as the new config says.
            monitor: counts the reloads.
        """
        while True:
            await request.take()
            self._notifier.reloading()
            config = await self._read()
            if config is not None:
                await self._apply(config, cameras)
            monitor.count_reload(applied=config is not None)
            self._notifier.ready()
            await anyio.sleep(_PAUSE_S)

    async def _apply(self, config: ServiceConfig, cameras: Cameras) -> None:
        applied = replace(
            config,
            publish=self.config.publish,
            model=self.config.model,
            state_dir=self.config.state_dir,
            keep_state=self.config.keep_state,
            keep_state_timeout_s=self.config.keep_state_timeout_s,
            keep_state_max_age_s=self.config.keep_state_max_age_s,
            runtime_dir=self.config.runtime_dir,
            exit_when_done=self.config.exit_when_done,
        )
        if needs_restart := list(different_keys(applied, config)):
            _log.warning("some config changes need a restart", keys=needs_restart)
        self._configure(applied)
        await cameras.apply(applied.cameras)
        log_reload(self.config, applied)
        self.config = applied

    async def _read(self) -> ServiceConfig | None:
        """The new config, or None if it cannot be used; the log has the reason."""
        try:
            with anyio.fail_after(_READ_S):
                return await anyio.to_thread.run_sync(self._load_config, abandon_on_cancel=True)
        except (ConfigError, ModelError) as error:
            _log.error("reload failed: invalid config, keeping the old one", problems=str(error))
        except TimeoutError:
            _log.error("reload failed: config not readable, keeping the old one", waited_s=_READ_S)
        return None
