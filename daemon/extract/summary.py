"""The messages at the end of an extraction."""

from collections.abc import Iterator
from pathlib import Path

from retinad.pipeline.frames import Flag

from .index import Index

_MOST_FAILURES = 20
"""Maximum number of failed frames that are listed; the index has all of them."""


RANDOM_WEIGHTS = "the weights are random: the features are meaningless (set model.checkpoint)"
"""The warning about random weights, which is printed at the start and at the end."""


def weights_note_line(note: str) -> str:
    """The line with the note that a checkpoint contains about itself, for example that a hybrid is not trained."""
    return f"note in the checkpoint: {note}"


def summary_lines(
    out: Path, index: Index, frames_per_s: float, *, random_weights: bool, weights_note: str | None
) -> Iterator[str]:
    """Yield the lines about a complete folder: failed frames, totals and warnings."""
    for failure in index.failures[:_MOST_FAILURES]:
        yield f"frame {failure.source_seq} failed: {failure.reason}"
    yield (
        f"{out} is complete: {index.frames} frames; {index.unreadable} unreadable, "
        f"{len(index.failures)} failed; {frames_per_s:.1f} frames/s"
    )
    not_finite = sum(Flag.NAN in frame.flags for shard in index.shards for frame in shard.frames)
    if not_finite:
        yield f"{not_finite} of these frames have non-finite numbers (flag {Flag.NAN})"
    if random_weights:
        yield RANDOM_WEIGHTS
    if weights_note is not None:
        yield weights_note_line(weights_note)


def remaining_line(out: Path, frames: int) -> str:
    """The line about an incomplete folder: its contents, and how to continue."""
    if not frames:
        return "no features were written"
    return f"{frames} frames are in {out}; run the same command to continue"
