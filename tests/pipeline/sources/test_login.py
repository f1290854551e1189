"""A login is answered as RFC 7616 says, and a refusal names its cause: no password, a wrong one, or an unknown way."""

import pytest

from retinad.pipeline.sources.login import Challenge, Credentials, parse_challenges, refusal_reason


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (['Basic realm="cam"'], [("basic", "MD5")]),
        (['Digest realm="a, Basic b", nonce="n", algorithm=SHA-256'], [("digest", "SHA-256")]),
        (['Digest realm="c",nonce="n", Basic realm="c"'], [("digest", "MD5"), ("basic", "MD5")]),
        (["Negotiate", "NTLM"], [("negotiate", "MD5"), ("ntlm", "MD5")]),
        (["Negotiate, Basic realm=cam"], [("negotiate", "MD5"), ("basic", "MD5")]),
        (['digest realm="", nonce="n", algorithm="sha-256-sess"'], [("digest", "SHA-256")]),
        ([""], []),
    ],
)
def test_challenges_are_told_apart(headers: list[str], expected: list[tuple[str, str]]) -> None:
    assert [(one.scheme, one.hash) for one in parse_challenges(headers)] == expected


@pytest.mark.parametrize(
    ("url", "headers", "words"),
    [
        (
            "rtsp://u:p@h/x",
            ['Digest realm="c", nonce="n", algorithm=SHA-256'],
            "does not know: Digest with SHA-256; allow",
        ),
        ("rtsp://h/x", ['Digest realm="c", nonce="n", algorithm=SHA-512-256'], "Digest with SHA-512-256"),
        ("rtsp://u:p@h/x", ['Digest realm="c", nonce="n", qop="auth-int"'], "Digest with MD5 and auth-int"),
        ("rtsp://u:p@h/x", ["Negotiate"], "does not know: Negotiate"),
        ("rtsp://u:p@h/x", ['Digest realm="c", nonce="n", algorithm=SHA-256', 'Basic realm="c"'], "rejected the user"),
        ("rtsp://u:p@h/x", ['Digest realm="c", nonce="n", qop="auth-int, auth"'], "rejected the user"),
        ("rtsp://u:p@h/x", [], "rejected the user"),
        ("rtsp://h/x", ['Basic realm="c"'], "the address has none: write rtsp://USER:PASSWORD@HOST/PATH"),
        ("https://h/x", [], "the address has none: write https://USER:PASSWORD@HOST/PATH"),
    ],
)
def test_a_refusal_names_its_cause(url: str, headers: list[str], words: str) -> None:
    assert words in refusal_reason(url, parse_challenges(headers))


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [  # RFC 7616, section 3.9.1
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_a_digest_is_that_of_the_standard(algorithm: str, response: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    monkeypatch.setattr("secrets.token_hex", lambda _: own)
    credentials = Credentials("http://Mufasa:Circle%20of%20Life@www.example.org/dir/index.html")
    nonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"
    header = f'Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm={algorithm}, nonce="{nonce}"'
    assert credentials.answer("GET", "/dir/index.html") is None, "nobody has asked"
    assert credentials.accept(parse_challenges([header]))
    answer = credentials.answer("GET", "/dir/index.html") or ""
    assert f'response="{response}"' in answer
    assert "nc=00000001" in answer
    assert "nc=00000002" in (credentials.answer("GET", "/dir/index.html") or "")


def test_the_best_login_that_is_offered_is_used() -> None:
    credentials = Credentials("http://u:p@h/")
    assert credentials.accept([Challenge("digest", (("algorithm", "SHA-256"),)), Challenge("basic"), Challenge("ntlm")])
    assert (credentials.answer("GET", "/") or "").startswith("Digest ")
    assert credentials.accept([Challenge("basic")])
    assert credentials.answer("GET", "/") == "Basic dTpw"
    assert not credentials.accept([Challenge("ntlm")])
    assert not Credentials("http://h/").accept([Challenge("basic")])
