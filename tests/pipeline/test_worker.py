"""The worker: one thread owns the resource, calls keep their order, errors and hangs stay visible."""

import contextlib
import threading
import time
from collections.abc import Iterator

import anyio
import pytest

from retinad.pipeline.worker import Worker

pytestmark = pytest.mark.anyio


class Resource:
    def __init__(self) -> None:
        self.threads = {threading.get_ident()}
        self.order: list[int] = []

    def note(self, number: int) -> int:
        self.threads.add(threading.get_ident())
        self.order.append(number)
        return number


def test_make_runs_in_the_thread_that_runs_the_calls() -> None:
    async def main() -> Resource:
        made: list[Resource] = []

        @contextlib.contextmanager
        def make() -> Iterator[Resource]:
            made.append(Resource())
            yield made[0]

        async with Worker(make) as worker, anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(worker.run, lambda resource, number=number: resource.note(number))
        return made[0]

    resource = anyio.run(main)
    assert resource.order == list(range(20))
    assert len(resource.threads) == 1
    assert resource.threads != {threading.get_ident()}


async def test_an_error_of_a_call_reaches_its_caller_only() -> None:
    async with Worker(lambda: contextlib.nullcontext(Resource())) as worker:
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda resource: 1 // 0)
        assert await worker.run(lambda resource: resource.note(7)) == 7


async def test_a_call_may_run_functions_on_the_event_loop_and_gets_results_and_errors() -> None:
    async with Worker(lambda: contextlib.nullcontext(Resource())) as worker:
        assert await worker.run(lambda resource: worker.on_loop(threading.get_ident)) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda resource: worker.on_loop(lambda: 1 // 0))


def test_a_call_that_outlasts_the_event_loop_cannot_use_it_and_its_thread_ends() -> None:
    release, refused = threading.Event(), threading.Event()

    def outlast(worker: Worker[Resource]) -> None:
        release.wait(10)
        try:
            worker.on_loop(pytest.fail)
        except RuntimeError:
            refused.set()

    async def main() -> threading.Thread:
        async with Worker(lambda: contextlib.nullcontext(Resource()), close_timeout_s=0) as worker:
            worker.start(lambda resource: outlast(worker))
            return worker._thread

    thread = anyio.run(main)
    release.set()
    thread.join(5)
    assert refused.is_set()
    assert not thread.is_alive()


async def test_an_error_while_creating_the_resource_is_raised_on_entry() -> None:
    def make() -> contextlib.nullcontext[Resource]:
        raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        async with Worker(make):
            pass


async def test_a_hung_call_shows_as_busy_and_does_not_delay_closing() -> None:
    release = threading.Event()
    async with Worker(lambda: contextlib.nullcontext(Resource()), close_timeout_s=0.1) as worker:
        with anyio.move_on_after(0.2):
            await worker.run(lambda resource: release.wait(10))
        assert worker.busy_s >= 0.15
        started = time.monotonic()
    assert time.monotonic() - started < 1.0
    release.set()


def is_overdue(worker: Worker[Resource]) -> bool:
    """Read `is_overdue` in a way that hides from the type checker that it was false just before."""
    return worker.is_overdue


async def test_a_call_beyond_its_limit_is_overdue_and_its_place_can_be_seen() -> None:
    release = threading.Event()
    async with Worker(lambda: contextlib.nullcontext(Resource()), call_limit_s=0.1) as worker:
        assert not worker.is_overdue
        with anyio.move_on_after(0.05):
            await worker.run(lambda resource: release.wait(10))
        assert not worker.is_overdue
        await anyio.sleep(0.1)
        assert is_overdue(worker)
        assert "test_worker.py" in "".join(worker.stack())
        release.set()
        with anyio.move_on_after(0.2):
            await worker.run(lambda resource: time.sleep(0.4), limited=False)
        assert not worker.is_overdue


async def test_closing_does_not_wait_again_for_a_call_that_has_had_its_time() -> None:
    release = threading.Event()
    async with Worker(lambda: contextlib.nullcontext(Resource()), close_timeout_s=0.3) as worker:
        with anyio.move_on_after(0.3):
            await worker.run(lambda resource: release.wait(10))
        started = time.monotonic()
    assert time.monotonic() - started < 0.2
    release.set()


async def test_the_resource_is_closed_at_the_end() -> None:
    closed = []

    @contextlib.contextmanager
    def make() -> Iterator[Resource]:
        yield Resource()
        closed.append(threading.get_ident())

    async with Worker(make) as worker:
        thread = await worker.run(lambda resource: threading.get_ident())
    assert closed == [thread]
    with pytest.raises(RuntimeError, match="closed"):
        await worker.run(lambda resource: None)
