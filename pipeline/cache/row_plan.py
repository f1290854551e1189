"""What a frame attends to in a network whose frames have tokens of their own for each frame of the window.

A frame of such a network (HorizonStream) is a *row*: its P tokens, then `slot_tokens` tokens for each *slot*, that is,
for each frame of its window. A row attends twice in a pair of blocks: each slot to the frame that it stands for, and
the whole row to the window. The tokens of the slots are never stored, so their keys and values come with the queries.

In a stream's first step, the window of every row is all frames of the step. But a row sees only the frames up to its
own. The slots of later frames are inactive in the whole row's attention: each of their tokens sees itself alone.

A stream's storage holds one frame less than a window: a step's last frame replaces the oldest one, which the step's
first frame still sees. So the last frame's P tokens are stored only after the attention of each layer. Until then, they
too come with the queries, and so do each row's own P tokens. Of a row's slots, only the last can stand for that frame.
"""

from .allocator import Span
from .page_table import VisibleRanges
from .window import FramePlan, StepPlan


def row_groups(span: Span, plan: StepPlan) -> tuple[VisibleRanges, ...]:
    """What each frame's row attends to, without inactive slots, which are its last ones."""
    tokens, slot_tokens = span.page_tokens, plan.after.layout.slot_tokens
    groups = []
    for number, frame in enumerate(plan.frames):
        own = tokens + slot_tokens * (number + 1 if plan.first else len(frame.window))
        ranges = tuple((span.start + start, span.start + stop) for start, stop in frame.visible)
        groups.append(VisibleRanges(own, ranges, tokens, own))
    return tuple(groups)


def slot_groups(span: Span, plan: StepPlan) -> tuple[VisibleRanges, ...]:
    """What the tokens of each slot attend to, frame by frame, and within a frame slot by slot."""
    tokens, slot_tokens = span.page_tokens, plan.after.layout.slot_tokens
    groups: list[VisibleRanges] = []
    for frame in plan.frames:
        first_slots = [span.start + slot for slot in frame.window]
        groups += [VisibleRanges(slot_tokens, ((slot, slot + tokens),), tokens, slot_tokens) for slot in first_slots]
        if sees_last(plan, frame):
            groups[-1] = VisibleRanges(slot_tokens, (), tokens, tokens + slot_tokens)
    return tuple(groups)


def sees_last(plan: StepPlan, frame: FramePlan) -> bool:
    """Whether a frame's last slot stands for the step's last frame, which is not stored yet."""
    return plan.first or frame is plan.frames[-1]
