"""Every key that tomllib reads is located at its place in the text."""

import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from retinad.daemon.config.keys import KeyPath
from retinad.daemon.config.locations import locate_keys

DOCUMENT = r"""# comment = 1
top = "a # [no] comment" # x = 1
"quoted key" = 'its = [x]'
a.b . "c\u00e9" = 1

[table] # comment
  list = [ 1, [2, 3], # comment ] with bracket
    { x = 1, y.z = "}" },
    ]
text = ~~~
fake = 1
[fake]
\~\~~ quoted ~~~~
raw = '\''
x = 1'\''
[[camera]]
name = "a"
[camera.stream]
window = 3
[table.sub]
[[camera]]
name = "b"
stream = {window = 4}
[[camera.deep]]
k = 1979-05-27T07:32:00Z
[[camera.deep]]
k = 07:32:00
""".replace("~", '"').replace(r"'\''", "'" * 3)


def paths_of(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths_of(item, (*path, index))


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("top",), 2, 1),
        (("quoted key",), 3, 1),
        (("a", "b", "cé"), 4, 1),
        (("a",), 4, 1),
        (("table",), 6, 1),
        (("table", "list"), 7, 3),
        (("table", "list", 1, 0), 7, 16),
        (("table", "list", 2, "y", "z"), 8, 14),
        (("table", "raw"), 14, 1),
        (("camera",), 16, 1),
        (("camera", 0, "name"), 17, 1),
        (("camera", 0, "stream", "window"), 19, 1),
        (("camera", 1), 21, 1),
        (("camera", 1, "stream", "window"), 23, 11),
        (("camera", 1, "deep", 1, "k"), 27, 1),
        (("camera", 1, "missing", "x"), 21, 1),
    ],
)
def test_a_key_is_found_at_its_place(path: KeyPath, line: int, column: int) -> None:
    place = locate_keys(DOCUMENT).find(path)
    assert place is not None
    assert (place.line, place.column) == (line, column)


def test_every_key_of_a_document_has_a_place() -> None:
    assert set(paths_of(tomllib.loads(DOCUMENT))) <= set(locate_keys(DOCUMENT).first)


_KEYS = st.lists(st.sampled_from(["a", "b", '"c.d"', "'e'", "1"]), min_size=1, max_size=3).map(".".join)
_SCALARS = st.one_of(
    st.integers().map(str),
    st.sampled_from(["nan", "true", "1e3", "1979-05-27 07:32:00", '""', "''", '"\\\\"', "'''\n[x]\n'''", '"""\\""""']),
    st.text("ab#[]{}=,.\\ '", max_size=8).map(lambda text: '"' + text.replace("\\", "\\\\") + '"'),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ " + " ,# x ]\n".join(items) + "\n]"),
        st.lists(inner, max_size=3).map(lambda items: "{" + ", ".join(f"k{n}={v}" for n, v in enumerate(items)) + "}"),
    ),
    max_leaves=5,
)
_LINES = st.one_of(
    st.builds("{} = {}".format, _KEYS, _VALUES),
    _KEYS.map("[{}]".format),
    _KEYS.map("[[ {} ]]".format),
    st.just("# [x"),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_LINES, max_size=8).map("\n".join))
def test_every_key_that_tomllib_reads_has_a_place(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
    assert set(paths_of(data)) <= set(locate_keys(text).first)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=100))
def test_any_text_can_be_scanned(text: str) -> None:
    locate_keys(text)
