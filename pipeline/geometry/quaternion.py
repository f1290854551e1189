"""Unit quaternions [..., 4], xyzw, as rotations; all functions broadcast over the leading axes."""

import numpy as np

from .pose import Floats

_TINY = 1e-300

_SMALL_MOVE = 1e-5
_MOST_MOVES = 100
"""A start that has not ended by then moves in a circle. The public code allows 1000 moves, which changed no result in
3000 random cases, but would hold up a live stream for 30 ms."""


def multiply(one: Floats, other: Floats) -> Floats:
    """The rotation `other`, then `one`."""
    a, b = one[..., :3], other[..., :3]
    c, d = one[..., 3:], other[..., 3:]
    vector = c * b + d * a + np.cross(a, b)
    return np.concatenate((vector, c * d - (a * b).sum(-1, keepdims=True)), axis=-1)


def conjugate(quaternion: Floats) -> Floats:
    """The inverse rotation."""
    found: Floats = quaternion * np.array([-1.0, -1.0, -1.0, 1.0])
    return found


def rotate(quaternion: Floats, vector: Floats) -> Floats:
    """The vectors [..., 3], rotated."""
    axis, w = quaternion[..., :3], quaternion[..., 3:]
    twice = 2 * np.cross(axis, vector)
    found: Floats = vector + w * twice + np.cross(axis, twice)
    return found


def log(quaternion: Floats) -> Floats:
    """The rotation vector [..., 3], of a length from 0 to pi."""
    signed = np.where(quaternion[..., 3:] < 0, -quaternion, quaternion)
    sine = np.linalg.norm(signed[..., :3], axis=-1, keepdims=True)
    found: Floats = signed[..., :3] * (2 * np.arctan2(sine, signed[..., 3:]) / np.maximum(sine, _TINY))
    return found


def exp(vector: Floats) -> Floats:
    """The rotation of a rotation vector [..., 3]."""
    angle = np.linalg.norm(vector, axis=-1, keepdims=True)
    sine = np.sin(angle / 2) / np.maximum(angle, _TINY)
    return np.concatenate((vector * sine, np.cos(angle / 2)), axis=-1)


def rotation_median(rotations: Floats) -> Floats:
    """A rotation in the middle of several, [n, 4] with n >= 1, which outliers hardly move.

    From each rotation as a start, M moves by v, the median of each coordinate of log(Q_i M^-1), until |v| < 1e-5. The
    start wins that ends with the least median angle to the rotations, the first of equals. If none ends, the result is
    the first rotation. (HorizonStream, arXiv 2605.23889, starts from ten at random.)
    """
    middle = rotations.copy()
    moving = np.ones(len(rotations), bool)
    for _ in range(_MOST_MOVES):
        step = np.median(log(multiply(rotations, conjugate(middle[moving])[:, None])), axis=1)
        far = np.linalg.norm(step, axis=1) >= _SMALL_MOVE
        numbers = np.flatnonzero(moving)[far]
        moving[:] = False
        if not len(numbers):
            break
        moving[numbers] = True
        moved = multiply(exp(step[far]), middle[numbers])
        middle[numbers] = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    if moving.all():
        first: Floats = rotations[0]
        return first
    angles = np.linalg.norm(log(multiply(rotations, conjugate(middle)[:, None])), axis=2)
    scores = np.where(moving, np.inf, np.median(angles, axis=1))
    found: Floats = middle[int(np.argmin(scores))]
    return found
