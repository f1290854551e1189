"""No secret survives masking, however it is spelled or quoted."""

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinad.pipeline.sources.redact import mask, redact_url, secrets_of, split_userinfo

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rtsp://h/x", ("rtsp://", None, "h/x")),
        ("rtsp://u:p@h:554/x", ("rtsp://", "u:p", "h:554/x")),
        ("rtsp://u:p@ss@h/x", ("rtsp://", "u:p@ss", "h/x")),
        ("rtsp://u:p/w@h/x", ("rtsp://", None, "u:p/w@h/x")),
        ("rtsp://h/x?mail=a@b", ("rtsp://", None, "h/x?mail=a@b")),
        ("rtsp://u:p@h/x?mail=a@b", ("rtsp://", "u:p", "h/x?mail=a@b")),
        ("http://u:p@[::1]:80/x", ("http://", "u:p", "[::1]:80/x")),
    ],
)
def test_user_information_is_split_as_in_the_standard(url: str, expected: tuple[str, str | None, str]) -> None:
    assert split_userinfo(url) == expected


@pytest.mark.parametrize(
    "password", [SECRET, f"{SECRET}@a", f"{SECRET}/b", f"{SECRET}#c", f"{SECRET}?d", f"%40{SECRET}"]
)
@pytest.mark.parametrize("query", ["", "?password=s3cret2", "?a=1&TOKEN=s3cret3&b=2", "?api_key=s3cret4"])
def test_no_secret_survives(password: str, query: str) -> None:
    source = f"rtsp://admin:{password}@127.0.0.1:554/x{query}"
    text = f"cannot open '{source}' ({source}), user admin, password {password}, host 127.0.0.1"
    for masked in (redact_url(source), mask(text, source)):
        assert SECRET not in masked
        assert "127.0.0.1" in masked


def test_encoded_and_decoded_spellings_are_masked() -> None:
    source = "rtsp://u:a%40b%2Fc@h/x"
    assert mask("login u with a@b/c or a%40b%2Fc or a%40b/c", source) == "login u with *** or *** or ***"


def test_a_header_with_user_and_password_is_masked() -> None:
    source = "http://admin:s%33cret@h/x"
    assert mask("Authorization: Basic YWRtaW46czNjcmV0", source) == "Authorization: Basic ***"


def test_other_addresses_are_masked_too() -> None:
    assert mask("redirected to http://v:other@h2/y?token=t", "/a/file.mp4") == "redirected to http://***@h2/y?token=***"


def test_an_address_without_a_scheme_is_masked() -> None:
    assert SECRET not in mask(f"there is no file admin:{SECRET}@h/x", f"admin:{SECRET}@h/x")


def test_paths_have_no_secrets() -> None:
    assert secrets_of("/data/a:b@c.mp4") == secrets_of("./what?.png") == frozenset()


@pytest.mark.parametrize("source", ["rtsp://u:p@127.0.0.1/x", "rtsp://u:%70@127.0.0.1/x", "rtsp://p@127.0.0.1/x"])
def test_a_short_password_is_masked_as_a_password_and_not_within_words(source: str) -> None:
    assert mask(f"{source} stopped: no port", source) == "rtsp://***@127.0.0.1/x stopped: no port"
    if ":p" in source:
        assert mask("u:p at 127.0.0.1, u:p@127.0.0.1", source) == "*** at 127.0.0.1, ***@127.0.0.1"


_PIECES = st.text("QXZ0987", min_size=4, max_size=8)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_piece_of_a_password_is_left_wherever_a_library_splits_the_address(data: st.DataObject) -> None:
    pieces = data.draw(st.lists(_PIECES, min_size=1, max_size=4))
    separators = data.draw(st.lists(st.sampled_from("@:/?#[]"), min_size=len(pieces), max_size=len(pieces)))
    password = "".join(map("{}{}".format, pieces, separators))
    for spelling in (password, quote(password, safe="")):
        source = f"rtsp://user:{spelling}@192.0.2.7/stream"
        for piece in pieces:
            text = (
                f"{source} cannot be opened: [Failed to resolve hostname {piece} unknown] tcp://{piece}:554 /{piece}@"
            )
            masked = mask(text, source)
            assert piece not in masked
            assert "cannot be opened: [Failed to resolve hostname *** unknown]" in masked


def test_an_address_to_fill_in_is_shown() -> None:
    text = "write rtsp://USER:PASSWORD@HOST/PATH"
    assert mask(text, "rtsp://h/x") == text
    for secret in ("rtsp://USER:PASSWORD@HOST/PATH@h", "rtsp://USER:PASSWORD@h/x", "http://USER:PASSWORD@HOST/PATHS"):
        assert "PASSWORD" not in mask(secret, "rtsp://h/x")
