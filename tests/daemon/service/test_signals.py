"""A signal that arrives twice, once directly and once through a parent that passes it on, is one."""

import os
import signal
import time

import anyio
import pytest
from structlog.testing import capture_logs

from retinad.daemon.service.signals import ECHO_S, EchoFilter, Signals

from ...deadlines import scaled


def test_the_same_signal_within_a_tenth_of_a_second_is_an_echo() -> None:
    now = [0.0]
    echoes = EchoFilter(lambda: now[0])
    assert not echoes.is_echo(signal.SIGTERM)
    now[0] = 0.09
    assert echoes.is_echo(signal.SIGTERM)
    assert not echoes.is_echo(signal.SIGINT)
    now[0] = 0.11
    assert not echoes.is_echo(signal.SIGTERM)


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_echo_does_not_end_a_service_that_is_stopping(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    signals = Signals()
    with capture_logs() as lines:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signals.receive)
            await anyio.sleep(0.05)
            os.kill(os.getpid(), number)
            await signals.stop.wait()
            os.kill(os.getpid(), number)
            await anyio.sleep(ECHO_S + 0.05)
            assert exits == []
            os.kill(os.getpid(), number)
            await anyio.sleep(scaled(0.3))
            tasks.cancel_scope.cancel()
    assert exits == [128 + number]
    assert [line["event"] for line in lines] == ["stopping", "second stop signal: exiting immediately"]


@pytest.mark.anyio
async def test_two_renewals_at_once_are_one_and_two_reloads_are_not() -> None:
    """The config may have changed between two reloads."""
    signals = Signals()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(signals.receive)
        await anyio.sleep(0.05)
        for number, request, again in (
            (signal.SIGUSR1, signals.renewal, False),
            (signal.SIGHUP, signals.reload, True),
        ):
            os.kill(os.getpid(), number)
            began = time.monotonic()
            await request.take()
            os.kill(os.getpid(), number)
            await anyio.sleep(0.02)
            if time.monotonic() - began < ECHO_S:
                assert request.is_pending is again
        tasks.cancel_scope.cancel()
