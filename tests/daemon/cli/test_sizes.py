"""A size on the command line is two numbers in range, and nothing else."""

import pytest

from retinad.daemon.cli.sizes import ANY, SYNTHETIC, parse_size


@pytest.mark.parametrize("text", ["", "640", "640x", "0640x480 ", "7x480", "640x9000", "-640x480", "\u0666x480"])
def test_a_size_is_two_numbers_in_range(text: str) -> None:
    assert parse_size("640x480", SYNTHETIC) == (640, 480)
    with pytest.raises(ValueError, match="expected a size such as 1920x1080, with sides of 8 to 8192"):
        parse_size(text, SYNTHETIC)


def test_frames_of_a_camera_have_the_range_of_the_config() -> None:
    assert parse_size("1x65536", ANY) == (1, 65_536)
    for text in ("0x480", "65537x480"):
        with pytest.raises(ValueError, match="with sides of 1 to 65536"):
            parse_size(text, ANY)
