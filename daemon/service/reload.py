"""Reloads the config while the service runs. A config that is invalid or unreadable changes nothing."""

from collections.abc import Callable

import anyio
import structlog

from retinad.pipeline.errors import ModelError, PublishError

from ..config.keys import error_text
from ..config.load import ConfigError, ServiceConfig
from .cameras import Cameras
from .monitor import StateMonitor
from .reload_plan import ReloadPlan, applicable, plan_reload
from .signals import Request
from .systemd import Notifier

_READ_S = 10.0
"""Time limit, in seconds, for reading the config. A pipe or a dead file server may block forever, which must not block
later reloads.
"""

_PAUSE_S = 0.5
"""Seconds between reloads: all requests that arrive during it become one reload."""

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
        """Reload on each request, forever.

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
        plan, applied = plan_reload(self.config, config), applicable(self.config, config)
        if plan.at_restart:
            _log.warning("some config changes need a restart", keys=list(plan.at_restart))
        self._configure(applied)
        await cameras.apply(applied.cameras)
        log_reload(plan)
        self.config = applied

    async def _read(self) -> ServiceConfig | None:
        """The new config, or None if it cannot be used; the log has the reason."""
        try:
            with anyio.fail_after(_READ_S):
                return await anyio.to_thread.run_sync(self._load_config, abandon_on_cancel=True)
        except (ConfigError, ModelError) as error:
            _log.error("reload failed: invalid config, keeping the old one", problems=str(error))
        except PublishError as error:
            _log.error("reload failed: keys not usable, keeping the old config and keys", problems=error_text(error))
        except TimeoutError:
            _log.error("reload failed: config not readable, keeping the old one", waited_s=_READ_S)
        return None


def log_reload(plan: ReloadPlan) -> None:
    """Log which cameras were added, removed and changed, and which of these kept their memory."""
    _log.info(
        "reloaded",
        added=list(plan.added),
        removed=list(plan.removed),
        changed=sorted((*plan.reopened, *plan.restarted)),
        memory_kept=list(plan.reopened),
    )
