"""Answers queries: where was this picture taken? One at a time, so that cameras wait for one picture at most.

Requests wait in a short queue. One that finds it full, or that has waited longer than its client does, is refused.
"""

import time
from collections import deque
from dataclasses import dataclass

import anyio
import structlog

from retinad.client.query import Query, decode_query, encode_answer, encode_refusal
from retinad.client.wire import Buffer, WireError
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import QueryError
from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.publish.query_socket import QuerySocket, Request
from retinad.pipeline.sources.picture_decoder import PictureDecoder
from retinad.pipeline.worker import Worker

MOST_WAITING = 8
"""Number of requests that may wait. Together they take up to 128 MiB."""
_LOOK_S = 0.05
"""Seconds after which the socket is looked at anyway: its descriptor does not announce every message."""

_log = structlog.get_logger("retinad")


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    query: Query
    deadline_s: float


class QueryServer:
    """Takes requests and answers them.

    Args:
        socket: the socket for queries.
        publisher: encodes the answers.
        worker: owner of the engine.
    """

    def __init__(self, socket: QuerySocket, publisher: Publisher, worker: Worker[Engine]) -> None:
        self._socket = socket
        self._publisher = publisher
        self._worker = worker
        self._waiting: deque[_Waiting] = deque()
        self._arrived = anyio.Event()

    async def serve(self) -> None:
        """Take and answer requests, forever.

        Raises:
            DeviceError: the device failed.
        """
        async with PictureDecoder() as decoder, anyio.create_task_group() as tasks:
            tasks.start_soon(self._take, name="take queries")
            while True:
                while self._waiting:
                    await self._answer(self._waiting.popleft(), decoder)
                self._arrived = anyio.Event()
                await self._arrived.wait()

    async def _take(self) -> None:
        while True:
            for request in self._socket.take():
                self._queue(request)
            with anyio.move_on_after(_LOOK_S):
                await anyio.wait_readable(self._socket.fileno())

    def _queue(self, request: Request) -> None:
        try:
            query = decode_query(request.parts)
        except WireError as error:
            self._refuse(request, str(error))
            return
        if len(self._waiting) >= MOST_WAITING:
            self._refuse(request, f"the service is busy: {MOST_WAITING} pictures wait")
            return
        self._waiting.append(_Waiting(request, query, time.monotonic() + query.header.timeout_s))
        self._arrived.set()

    async def _answer(self, waiting: _Waiting, decoder: PictureDecoder) -> None:
        request, query, begun_s = waiting.request, waiting.query, time.monotonic()
        try:
            if begun_s > waiting.deadline_s:
                raise QueryError(f"the picture waited longer than {query.header.timeout_s:g} s")
            pixels = await decoder.decode(query.picture)
            features = await self._worker.run(lambda engine: engine.locate(query.header.camera, pixels))
        except QueryError as error:
            self._refuse(request, str(error))
            return
        answer: list[Buffer] = encode_answer(self._publisher.encoded(features))
        self._socket.answer(request, answer)
        took_ms = round(1e3 * (time.monotonic() - begun_s), 1)
        _log.debug("picture located", camera=query.header.camera, took_ms=took_ms)

    def _refuse(self, request: Request, reason: str) -> None:
        _log.debug("picture not located", reason=reason)
        self._socket.answer(request, encode_refusal(reason))


async def serve_queries(publisher: Publisher, worker: Worker[Engine]) -> None:
    """Answer queries, forever, if the config has an endpoint for them.

    Raises:
        DeviceError: the device failed.
    """
    if publisher.queries is not None:
        await QueryServer(publisher.queries, publisher, worker).serve()
