"""The process that decodes pictures from the network: a picture that crashes its decoder ends this process only.

It reads pictures from standard input until it is closed, each after its length, and writes each one's pixels, or the
reason why there are none, to standard output.
"""

import os
import struct
import sys
from typing import BinaryIO

LENGTH = struct.Struct("=Q")
"""Precedes a picture's bytes: their number."""
ANSWER = struct.Struct("=IIQ")
"""Precedes the answer: width and height of the picture, or 0 and 0, and the number of bytes that follow. These are the
pixels, uint8 [height, width, 3], BGR, or the reason as text."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Decode pictures until there are no more requests."""
    from .images import decode  # OpenCV, which those who only talk to this process need not load

    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        data = requests.read(*LENGTH.unpack(head))
        try:
            pixels = decode(data)
        except ValueError as error:
            reason = str(error).encode()
            answers.write(ANSWER.pack(0, 0, len(reason)) + reason)
        else:
            height, width = pixels.shape[:2]
            answers.write(ANSWER.pack(width, height, pixels.nbytes))
            answers.write(pixels.data)
        answers.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    serve(sys.stdin.buffer, answers)
