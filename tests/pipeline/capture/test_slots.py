"""A slot is reused only after the last reference to its frame is gone."""

import gc
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from retinad.pipeline.capture.protocol import FrameMemory
from retinad.pipeline.capture.slots import ReleaseSender, SlotReader, SlotWriter
from retinad.pipeline.frames import Pixels


class Pair:
    """A writer and a reader in one process."""

    def __init__(self, slots: int) -> None:
        self.reader: SlotReader | None = None
        self.writer = SlotWriter(slots, self._announce)

    def _announce(self, memory: FrameMemory, fd: int) -> None:
        self.reader = SlotReader(memory, fd, self.writer.free)

    @property
    def exhausted(self) -> bool:
        assert self.reader is not None
        return self.reader.exhausted

    def filled(self, value: int) -> Pixels:
        frame = self.frame(value)
        assert frame is not None
        return frame

    def frame(self, value: int, shape: tuple[int, int, int] = (4, 6, 3)) -> Pixels | None:
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
def test_any_view_keeps_the_slot(keep: Callable[[Pixels], npt.NDArray[np.generic]]) -> None:
    pair = Pair(1)
    view = keep(pair.filled(7))
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


def test_exhausted_means_that_all_slots_are_lent() -> None:
    pair = Pair(2)
    frames = [pair.frame(1)]
    exhausted = [pair.exhausted]
    frames.append(pair.frame(2))
    exhausted.append(pair.exhausted)
    frames.clear()
    exhausted.append(pair.exhausted)
    assert exhausted == [False, True, False]


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
    sender = ReleaseSender(lambda generation, slot: sent.append((generation, slot)))
    sender.send(0, 1)
    sender.close()
    sender.send(0, 2)
    assert sent == [(0, 1)]

    def dead(generation: int, slot: int) -> None:
        raise BrokenPipeError

    ReleaseSender(dead).send(0, 1)
