"""One setting scales the deadlines, and a wrong value of it is an error."""

import pytest

from .deadlines import SCALE, VARIABLE, read_scale, scaled


def test_the_scale_is_one_unless_it_is_set() -> None:
    assert read_scale({}) == read_scale({VARIABLE: ""}) == 1.0
    assert read_scale({VARIABLE: "2.5"}) == 2.5


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast"])
def test_a_scale_that_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        read_scale({VARIABLE: text})


def test_deadlines_and_timeouts_follow_the_scale(request: pytest.FixtureRequest) -> None:
    assert scaled(10) == 10 * SCALE
    marker = request.node.get_closest_marker("timeout")
    assert (marker.args[0] if marker else 60) == scaled(60)
