"""Numbers, counts and publishes the model's outcomes (features or failures), in the order in which they leave it."""

from collections.abc import Callable, Iterable
from typing import Protocol

from .frame_queue import FrameQueue, FrameQueues
from .frames import Features, Flag, FrameFailure, Outcome


class FeaturesSink(Protocol):
    """Receives features: the publisher, or a test's list."""

    def publish_features(
        self, features: Features, *, seq: int, dropped_total: int, failed_total: int, model_done_ns: int
    ) -> None:
        """Send one record. Never blocks.

        Args:
            features: what to send.
            seq: number of the record within its stream epoch; the numbers have no gaps.
            dropped_total: number of the camera's frames dropped so far.
            failed_total: number of the camera's frames that failed so far.
            model_done_ns: `time.monotonic_ns()` when the model finished the step.
        """


def _ignore(failure: FrameFailure) -> None:
    """Ignore a failure."""


class Delivery:
    """Numbers records (`seq`, without gaps within a stream epoch), updates the cameras' counters, and publishes.

    Args:
        queues: the cameras' queues, whose counters are updated.
        sink: receives the features.
        on_failure: called with each failure.
    """

    def __init__(
        self, queues: FrameQueues, sink: FeaturesSink, on_failure: Callable[[FrameFailure], None] = _ignore
    ) -> None:
        self._queues = queues
        self._sink = sink
        self._on_failure = on_failure
        self._last_seq: dict[str, tuple[int, int]] = {}

    def deliver(self, outcomes: Iterable[Outcome], model_done_ns: int) -> None:
        """Publish features and count failures; outcomes of removed cameras are skipped.

        If a camera was removed and another one added under the same name, outcomes of the removed camera are skipped
        too: its frames were already counted and announced as failed at the removal, even if their step ends later.
        """
        for outcome in outcomes:
            if not self._is_awaited(outcome):
                continue
            queue = self._queues[outcome.stamp.camera]
            if isinstance(outcome, FrameFailure):
                queue.mark_failed()
                self._on_failure(outcome)
            else:
                self._publish(outcome, queue, model_done_ns)

    def next_seq(self, camera: str, stream_epoch: int) -> int:
        """The number of the camera's next record in this stream epoch, which must be the camera's current one."""
        last_epoch, last_seq = self._last_seq.get(camera, (-1, -1))
        return last_seq + 1 if stream_epoch == last_epoch else 0

    def forget(self, camera: str) -> None:
        """Reset the numbering of a camera's records. Idempotent."""
        self._last_seq.pop(camera, None)

    def _is_awaited(self, outcome: Outcome) -> bool:
        stamp = outcome.stamp
        return stamp.camera in self._queues and stamp.stream_epoch >= self._queues[stamp.camera].first_epoch

    def _publish(self, features: Features, queue: FrameQueue, model_done_ns: int) -> None:
        stamp = features.stamp
        seq = self.next_seq(stamp.camera, stamp.stream_epoch)
        self._last_seq[stamp.camera] = (stamp.stream_epoch, seq)
        self._sink.publish_features(
            features,
            seq=seq,
            dropped_total=queue.counters.dropped,
            failed_total=queue.counters.failed,
            model_done_ns=model_done_ns,
        )
        queue.mark_published(nan=Flag.NAN in features.flags)
