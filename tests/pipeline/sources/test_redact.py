"""No secret survives masking, however it is spelt or quoted."""

import pytest

from retinad.pipeline.sources.redact import mask, redact_url, secrets_of, split_userinfo

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rtsp://h/x", ("rtsp://", None, "h/x")),
        ("rtsp://u:p@h:554/x", ("rtsp://", "u:p", "h:554/x")),
        ("rtsp://u:p@ss@h/x", ("rtsp://", "u:p@ss", "h/x")),
        ("rtsp://u:p/w@h/x", ("rtsp://", "u:p/w", "h/x")),
        ("rtsp://u:p#w@h/x", ("rtsp://", "u:p#w", "h/x")),
        ("rtsp://u:p?w@h/x", ("rtsp://", "u:p?w", "h/x")),
        ("rtsp://h/x?mail=a@b", ("rtsp://", None, "h/x?mail=a@b")),
        ("rtsp://u:p@h/x?mail=a@b", ("rtsp://", "u:p", "h/x?mail=a@b")),
        ("http://u:p@[::1]:80/x", ("http://", "u:p", "[::1]:80/x")),
    ],
)
def test_user_information_is_found_as_people_write_it(url: str, expected: tuple[str, str | None, str]) -> None:
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


def test_addresses_of_others_are_masked_too() -> None:
    assert mask("redirected to http://v:other@h2/y?token=t", "/a/file.mp4") == "redirected to http://***@h2/y?token=***"


def test_an_address_without_its_scheme_keeps_its_secret() -> None:
    assert SECRET not in mask(f"there is no file admin:{SECRET}@h/x", f"admin:{SECRET}@h/x")


def test_paths_have_no_secrets() -> None:
    assert secrets_of("/data/a:b@c.mp4") == secrets_of("./what?.png") == frozenset()
