"""What a frame attends to in a network whose frames have tokens of their own for each frame of the window.

A frame of such a network (HorizonStream) is a *row*: its P tokens, then `slot_tokens` tokens for each *slot*, that is,
for each frame of its window. A row attends twice in a pair of blocks: each slot to the frame that it stands for, and
the whole row to the window. The tokens of the slots are never stored, so their keys and values come with the queries.

In a stream's first step, the window of every row is all frames of the step. But a row sees only the frames up to its
own. The slots of later frames are inactive in the whole row's attention: each of their tokens sees itself alone.
"""

from .allocator import Span
from .page_table import VisibleRanges
from .window import StepPlan


def row_groups(span: Span, plan: StepPlan) -> tuple[VisibleRanges, ...]:
    """What each frame's row attends to, without inactive slots, which are its last ones."""
    tokens, slot_tokens = span.page_tokens, plan.after.layout.slot_tokens
    groups = []
    for number, frame in enumerate(plan.frames):
        own = slot_tokens * (number + 1 if plan.first else len(frame.window))
        ranges = tuple((span.start + start, span.start + stop) for start, stop in frame.visible)
        groups.append(VisibleRanges(tokens + own, ranges, tokens, own))
    return tuple(groups)


def slot_groups(span: Span, plan: StepPlan) -> tuple[VisibleRanges, ...]:
    """What the tokens of each slot attend to, frame by frame, and within a frame slot by slot."""
    tokens, slot_tokens = span.page_tokens, plan.after.layout.slot_tokens
    return tuple(
        VisibleRanges(slot_tokens, ((span.start + slot, span.start + slot + tokens),), tokens, slot_tokens)
        for frame in plan.frames
        for slot in frame.window
    )
