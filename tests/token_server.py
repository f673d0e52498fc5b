"""A token endpoint on loopback, for OAUTHBEARER with client credentials. A broker verifies its tokens by a key set."""

from __future__ import annotations

import hmac
import json
import ssl
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs

CLIENT_ID = "delayline-client"
CLIENT_SECRET = "unique-secret-55d0"
SCOPE = "messages"
# The key of the tokens' signature, which needs 256 bits.
_KEY = b"the-token-server-and-broker-know"


class TokenServer:
    """Serves https with a certificate and its key, which is encrypted with `password`. A context manager.

    It knows one client: `CLIENT_ID`, with `CLIENT_SECRET` and `SCOPE`. `user` is the name that a broker sees in the
    tokens. `issued` counts them.
    """

    def __init__(self, certificate: Path, key: Path, password: str, user: str) -> None:
        self.user = user
        self.issued = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key, password)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        return f"https://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, object]]:
        """Return the status and the JSON for a request (RFC 6749, sections 4.4.2 and 5)."""
        kind, _, login = authorization.partition(" ")
        if kind != "Basic" or b64decode(login).decode() != f"{CLIENT_ID}:{CLIENT_SECRET}":
            return 401, {"error": "invalid_client"}
        if form != {"grant_type": ["client_credentials"], "scope": [SCOPE]}:
            return 400, {"error": "invalid_request"}
        self.issued += 1
        return 200, {"access_token": _token(self.user), "token_type": "Bearer", "expires_in": 300}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, answer = server.answer(self.headers["Authorization"] or "", form)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        return Handler


def write_key_set(file: Path) -> None:
    """Write the key by which a broker verifies the tokens (RFC 7517)."""
    key = {"kty": "oct", "kid": "k", "alg": "HS256", "use": "sig", "k": _encoded(_KEY)}
    file.write_text(json.dumps({"keys": [key]}))


def _token(user: str) -> str:
    """Return a signed JWT (RFC 7515) that is valid for five minutes."""
    now_s = int(time.time())
    claims = {"sub": user, "scope": SCOPE, "iat": now_s, "exp": now_s + 300}
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "kid": "k"}, claims)]
    signed = ".".join(map(_encoded, parts))
    return f"{signed}.{_encoded(hmac.digest(_KEY, signed.encode(), 'sha256'))}"


def _encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).rstrip(b"=").decode()
