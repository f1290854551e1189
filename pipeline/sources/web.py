"""A small HTTP client for cameras: one connection that is kept, logins, redirections, and a body read as it arrives.

FFmpeg reads everything else over HTTP. This client exists because FFmpeg keeps no connection, reports a part's time
when the next part begins, and refuses parts that are not exactly `image/jpeg`.
"""

import http.client
import os
import socket
import ssl
from contextlib import suppress
from urllib.parse import urljoin, urlsplit

from .login import Credentials, parse_challenges
from .redact import split_userinfo

_MOST_REDIRECTIONS = 8
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})
_DROPPED = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class WebClient:
    """Sends HTTP requests to one address. Like FFmpeg, it does not verify certificates: cameras have self-signed ones.

    Args:
        url: `http://` or `https://` address, with user and password where the camera needs them.
        timeout_s: seconds of silence after which a request fails.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        scheme, _, rest = split_userinfo(url)
        self.logins: tuple[str, ...] = ()
        self._url = scheme + rest
        self._credentials = Credentials(url)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._origin: tuple[str, str] = ("", "")
        self._first_host = urlsplit(self._url).hostname

    def get(self) -> http.client.HTTPResponse:
        """Request the address. Before the next request, read the whole body of the response or close the client.

        Raises:
            OSError: the host cannot be reached, or does not answer in time.
            http.client.HTTPException: its answer is not HTTP.
        """
        asked = False
        for _ in range(_MOST_REDIRECTIONS):
            response = self._request()
            location = response.getheader("Location")
            if response.status in _REDIRECTIONS and location:
                target = urljoin(self._url, location)
                if not target.startswith(("http://", "https://")):
                    return response
                self._url = target
            elif response.status == 401 and not asked:
                asked = True
                self.logins = tuple(response.headers.get_all("WWW-Authenticate", []))
                if not (self._is_home() and self._credentials.accept(parse_challenges(self.logins))):
                    return response
            else:
                return response
            self._finish(response)
        return response

    def set_timeout(self, timeout_s: float) -> None:
        """Change the timeout of further reads and requests."""
        self._timeout_s = timeout_s
        if self._socket is not None:
            self._socket.settimeout(timeout_s)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self._socket = None

    def _request(self) -> http.client.HTTPResponse:
        parts = urlsplit(self._url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        path = "".join(char if "!" <= char <= "~" else _encoded(char) for char in path)
        answer = self._credentials.answer("GET", path) if self._is_home() else None
        headers = {"Accept": "*/*", "User-Agent": "retinad"} | ({"Authorization": answer} if answer else {})
        kept = self._connection is not None and self._origin == (parts.scheme, parts.netloc)
        if not kept:
            self._connect(parts.scheme, parts.netloc)
        try:
            return self._send(path, headers)
        except _DROPPED:
            if not kept:
                raise
        self._connect(parts.scheme, parts.netloc)  # the server had closed the connection that was kept
        return self._send(path, headers)

    def _send(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        assert self._connection is not None
        self._connection.request("GET", path, headers=headers)
        self._socket = self._connection.sock  # http.client gives it up where the response ends with the connection
        return self._connection.getresponse()

    def _connect(self, scheme: str, netloc: str) -> None:
        self.close()
        self._origin = (scheme, netloc)
        if scheme == "https":
            context = ssl._create_unverified_context()
            self._connection = http.client.HTTPSConnection(netloc, timeout=self._timeout_s, context=context)
        else:
            self._connection = http.client.HTTPConnection(netloc, timeout=self._timeout_s)

    def _is_home(self) -> bool:
        # The password is for the host of the address, not for those that it redirects to.
        return urlsplit(self._url).hostname == self._first_host

    def _finish(self, response: http.client.HTTPResponse) -> None:
        if response.length is None or response.length > 65536:
            self.close()
            return
        with suppress(OSError, http.client.HTTPException):
            response.read()


def is_proxied(url: str) -> bool:
    """Whether FFmpeg would use a proxy for an address. `WebClient` does not support proxies."""
    return url.startswith("http") and any(os.environ.get(name) for name in ("http_proxy", "https_proxy"))


def _encoded(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
