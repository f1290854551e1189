"""A slot is written again only when the last reference to its frame is gone."""

import gc
import os

import numpy as np
import pytest
import torch

from retinad.pipeline.capture.protocol import Memory
from retinad.pipeline.capture.slots import Returns, SlotReader, SlotWriter


class Pair:
    """A writer and a reader in one process."""

    def __init__(self, slots: int) -> None:
        self.reader: SlotReader | None = None
        self.writer = SlotWriter(slots, self._announce)

    def _announce(self, memory: Memory, fd: int) -> None:
        self.reader = SlotReader(memory, fd, self.writer.free)

    def frame(self, value: int, shape: tuple[int, int, int] = (4, 6, 3)) -> np.ndarray | None:
        self.writer.reserve(int(np.prod(shape)))
        slot = self.writer.take()
        if slot is None:
            return None
        self.writer.view(slot, shape)[:] = value
        assert self.reader is not None
        return self.reader.lend(slot, shape)


@pytest.mark.parametrize(
    "keep",
    [
        lambda frame: frame[1:, ::2],
        lambda frame: frame.reshape(-1)[3:],
        lambda frame: frame.view(np.int8),
        lambda frame: np.asarray(memoryview(frame)),
        lambda frame: frame.transpose(2, 0, 1)[None],
        np.asarray,
    ],
    ids=["slice", "reshape", "dtype", "memoryview", "transpose", "asarray"],
)
def test_any_view_keeps_the_slot(keep: object) -> None:
    pair = Pair(1)
    view = keep(pair.frame(7))  # type: ignore[operator]
    gc.collect()
    assert pair.frame(8) is None
    assert (view == 7).all()
    del view
    frame = pair.frame(9)
    assert frame is not None
    assert (frame == 9).all()


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_tensor_keeps_the_slot() -> None:
    pair = Pair(1)
    tensor = torch.from_numpy(pair.frame(7)).permute(2, 0, 1)[:1]
    gc.collect()
    assert pair.frame(8) is None
    assert bool((tensor == 7).all())
    del tensor
    assert pair.frame(9) is not None


def test_frames_are_read_only() -> None:
    frame = Pair(1).frame(7)
    assert frame is not None
    with pytest.raises(ValueError, match="read-only"):
        frame[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        frame.flags.writeable = True


def test_larger_frames_get_new_memory_and_old_ones_stay_as_they_were() -> None:
    pair = Pair(2)
    small = pair.frame(1)
    large = pair.frame(2, (400, 600, 3))
    assert pair.writer.generation == 1
    again = pair.frame(3)
    del small
    assert pair.frame(4) is None, "a slot of replaced memory came back"
    assert large is not None
    assert again is not None
    assert (large == 2).all()
    assert (again == 3).all()


def test_exhausted_tells_that_all_slots_are_lent() -> None:
    pair = Pair(2)
    frames = [pair.frame(1)]
    assert pair.reader is not None
    assert not pair.reader.exhausted
    frames.append(pair.frame(2))
    assert pair.reader.exhausted
    frames.clear()
    assert not pair.reader.exhausted


def test_memory_leaves_no_descriptor() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    pair = Pair(3)
    frame = pair.frame(1)
    assert len(os.listdir("/proc/self/fd")) <= before + 2, "each side's map holds one"
    del frame, pair
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_sent_after_close_and_a_dead_peer_is_no_error() -> None:
    sent: list[tuple[int, int]] = []
    returns = Returns(lambda generation, slot: sent.append((generation, slot)))
    returns.release(0, 1)
    returns.close()
    returns.release(0, 2)
    assert sent == [(0, 1)]

    def dead(generation: int, slot: int) -> None:
        raise BrokenPipeError

    Returns(dead).release(0, 1)
