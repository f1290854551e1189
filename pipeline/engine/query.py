"""Read-only queries: where a picture was taken, and its depth, from what a stream remembers now.

A query runs like a frame that is not a keyframe, but its tokens are stored outside the stream's slots, and its step is
not committed.
"""

import time

import numpy as np

from ..cache.kv_pool import KVCachePool
from ..cache.stream_cache import StreamState
from ..cache.window import CacheLayout
from ..errors import QueryError
from ..frames import CropPlace, Features, Flag, FrameStamp, OutputKind, Pixels, Size
from .images import ImagePreprocessor
from .model_runner import FrameChunk, ModelRunner
from .preprocess import ResizeGeometry
from .stepper import GeometryOf
from .stream import PreparedFrame, Stream

ANSWERED = frozenset((OutputKind.POSE, OutputKind.DEPTH))
"""The kinds of outputs in an answer, as far as the stream publishes them."""


class QuerySlots:
    """The slots for the tokens of a query's frame. They are kept from one query to the next.

    Args:
        pool: the storage.
    """

    def __init__(self, pool: KVCachePool) -> None:
        self._pool = pool
        self._owner: int | None = None
        self._tokens = 0

    def beside(self, state: StreamState) -> int:
        """The first of the slots for one frame of a stream, counted from the stream's own first slot.

        Raises:
            AdmissionError: the pool has no room for one more frame.
        """
        tokens = state.window.layout.frame_tokens
        if self._owner is None or self._tokens != tokens:
            self.free()
            self._owner, self._tokens = self._pool.allocate(_one_frame(tokens)), tokens
        return self._pool.span(self._owner).start - state.span.start

    def free(self) -> None:
        """Give the slots back. Idempotent."""
        if self._owner is not None:
            self._pool.free(self._owner)
            self._owner = None


class QueryRunner:
    """Answers queries.

    Args:
        model_runner: runs the network.
        preprocessor: makes the model's images.
        pools: storage of the streams' KV caches, and of the camera head's.
        geometry_of: computes how pictures are fitted to the model.
    """

    def __init__(
        self,
        model_runner: ModelRunner,
        preprocessor: ImagePreprocessor,
        pools: tuple[KVCachePool, KVCachePool],
        geometry_of: GeometryOf,
    ) -> None:
        self._model_runner = model_runner
        self._preprocessor = preprocessor
        self._slots, self._pose_slots = map(QuerySlots, pools)
        self._geometry_of = geometry_of

    def free(self) -> None:
        """Free the memory that is kept for queries. Idempotent."""
        self._slots.free()
        self._pose_slots.free()

    def locate(self, stream: Stream, pixels: Pixels) -> Features:
        """See `Engine.locate`."""
        started_ns = time.monotonic_ns()
        state, poses = stream.state, stream.poses
        if stream.metric_windows:
            raise QueryError("this model cannot locate pictures: it estimates poses within a window of frames only")
        if OutputKind.POSE not in stream.outputs:
            listed = ", ".join(sorted(stream.outputs))
            raise QueryError(f"camera {stream.camera!r} publishes no poses, so none can be found: it has {listed}")
        if state is None or poses is None or stream.last is None or stream.starting:
            raise QueryError(
                f"camera {stream.camera!r} remembers nothing yet: its first frames are still being collected"
            )
        stamp, geometry, part = self._fitted(pixels, stream, stream.last)
        image = self._preprocessor.make(part, geometry)
        wanted = stream.outputs & ANSWERED
        frame = PreparedFrame(stamp, image, geometry, epoch=stream.epoch, epoch_frame=stream.next_frame, wanted=wanted)
        plan = state.window.plan_query(self._slots.beside(state))
        pose_plan = poses.window.plan_query(self._pose_slots.beside(poses))
        found = self._model_runner.query(FrameChunk(stream, (frame,)), plan, pose_plan, started_ns)
        if Flag.NAN in found.flags:
            raise QueryError("the model's numbers for this picture are not finite")
        return stream.trajectory.mapped(found)

    def _fitted(
        self, pixels: Pixels, stream: Stream, last: tuple[FrameStamp, ResizeGeometry]
    ) -> tuple[FrameStamp, ResizeGeometry, Pixels]:
        # The memory holds images of one size, so the middle of a picture of another shape is used.
        size, wanted = (pixels.shape[1], pixels.shape[0]), last[1].model_size
        try:
            geometry, crop = self._geometry_of(size, stream.resize), None
            if geometry.model_size != wanted:
                crop, kept = _middle(size, wanted)
                geometry = self._geometry_of(kept, stream.resize)
        except ValueError as error:
            raise QueryError(f"the picture cannot be fitted to the model: {error}") from error
        if geometry.model_size != wanted:
            made, needed = ("{}x{}".format(*shape) for shape in (geometry.model_size, wanted))
            raise QueryError(f"the picture becomes {made} pixels in the model, but the memory holds images of {needed}")
        now = FrameStamp(
            camera=stream.camera,
            stream_epoch=last[0].stream_epoch,
            source_seq=last[0].source_seq,
            capture_unix_ns=time.time_ns(),
            capture_monotonic_ns=time.monotonic_ns(),
            pts_ns=None,
            source_size=geometry.source_size,
            crop=crop,
        )
        return now, geometry, pixels if crop is None else _part(pixels, crop, geometry.source_size)


def _one_frame(tokens: int) -> CacheLayout:
    return CacheLayout(
        frame_tokens=tokens,
        front_pages=1,
        window_frames=0,
        pinned_pages=0,
        scale_frames=0,
        keyframe_interval=1,
        history_frames=0,
        entry_tokens=1,
    )


def _middle(size: Size, shape: Size) -> tuple[CropPlace, Size]:
    # The largest part in the middle of a picture that has the shape of an image.
    (width, height), (columns, rows) = size, shape
    kept = min(width, round(height * columns / rows)), min(height, round(width * rows / columns))
    return CropPlace((width - kept[0]) // 2, (height - kept[1]) // 2, size), kept


def _part(pixels: Pixels, crop: CropPlace, size: Size) -> Pixels:
    return np.ascontiguousarray(pixels[crop.top : crop.top + size[1], crop.left : crop.left + size[0]])
