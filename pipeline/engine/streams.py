"""The open streams of an engine. Opens, finds and closes streams by the name of their camera."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from ..cache.kv_pool import KVCachePool
from ..config import Crop, ModelConfig, ResizeMode, StreamConfig
from ..errors import AdmissionError
from ..frames import MOTION_KINDS, OutputKind
from ..view_config import ViewConfig
from .admission import check_admission
from .stream import Stream
from .token_shape import TokenShape
from .view import StreamView

STATELESS = StreamConfig(scale_frames=1, window=1, history_frames=0)
"""Stream settings for a network that keeps no memory."""


class StreamRegistry:
    """Streams by camera name; iterates over the open ones.

    Args:
        config: the model's config, which limits the number of streams.
        pool: storage of the streams' KV caches.
        whole_pages: whether the attention backend can read only whole pages.
    """

    def __init__(self, config: ModelConfig, pool: KVCachePool, *, whole_pages: bool) -> None:
        self._config = config
        self._pool = pool
        self._whole_pages = whole_pages
        self._streams: dict[str, Stream] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(tuple(self._streams.values()))

    def __getitem__(self, camera: str) -> Stream:
        if camera not in self._streams:
            raise ValueError(f"camera {camera!r} has no stream")
        return self._streams[camera]

    def get(self, camera: str) -> Stream | None:
        """A camera's stream, or None if it has none."""
        return self._streams.get(camera)

    def open(
        self,
        camera: str,
        config: StreamConfig,
        resize: ResizeMode,
        crop: Crop | None = None,
        outputs: Collection[OutputKind] | None = None,
        known: ViewConfig | None = None,
    ) -> None:
        """Open a stream, without memory yet. It publishes these kinds of outputs, or all of the model's.

        Raises:
            AdmissionError: `max_streams` streams are already open, an output is not one of the model's, or the network
                cannot follow the stream's settings.
            ValueError: the camera already has a stream.
        """
        kinds = frozenset(self._config.outputs if outputs is None else outputs)
        if not kinds or not kinds.issubset(self._config.outputs):
            wanted = f"some of the model's outputs ({', '.join(self._config.outputs)})"
            raise AdmissionError(f"camera {camera!r} must have {wanted}, got {', '.join(sorted(kinds)) or 'none'}")
        if config.keyframe_flow_px and not kinds >= MOTION_KINDS:
            reason = "keyframes by motion (keyframe_flow_px) follow from pose and depth"
            raise AdmissionError(f"{reason}, but the outputs of camera {camera!r} are {', '.join(sorted(kinds))}")
        if camera in self._streams:
            raise ValueError(f"camera {camera!r} already has a stream")
        config = self._supported(camera, config)
        check_admission(camera, config, len(self._streams), self._config, self._pool)
        every, stride = self._config.output.map_every, self._config.output.map_stride
        known = known or ViewConfig()
        view = StreamView(known, self._pool.shape.device) if known.mask or known.calibration else None
        windows = self._has_windows
        self._streams[camera] = Stream(camera, config, resize, crop, kinds, every, stride, known, view, windows)

    def warm_up_stream(self, outputs: Collection[OutputKind]) -> Stream:
        """A stream that is not among the open ones, with the smallest memory, in which to run the first steps."""
        config = StreamConfig(scale_frames=1, window=1, history_frames=0 if self._has_windows else 1)
        return Stream("warm-up", config, ResizeMode.CROP, outputs=frozenset(outputs), metric_windows=self._has_windows)

    def close(self, camera: str) -> None:
        """Drop a stream and free its memory. Idempotent."""
        stream = self._streams.pop(camera, None)
        if stream is not None:
            stream.free()

    @property
    def _has_windows(self) -> bool:
        return self._config.network.slot_tokens > 0

    def _supported(self, camera: str, config: StreamConfig) -> StreamConfig:
        if not self._config.running_mixers:
            return STATELESS
        try:
            TokenShape.of(self._config.network, (1, 1)).layout(config)
        except ValueError as error:
            raise AdmissionError(f"camera {camera!r}: {error}") from error
        # With several frames per step, the history ring would wrap within a page, unless epochs end before it is full.
        endless = self._whole_pages and config.retention.cross_frame_special and not config.epoch_frames
        return replace(config, run_frames=1) if endless else config
