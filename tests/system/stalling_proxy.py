"""A proxy in front of the S3 server that holds one upload back until the test lets it go on."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress

_MOST_BYTES = 1 << 16


class StallingProxy:
    """Passes bytes on between clients and the server at `port`. Each connection has two threads."""

    def __init__(self, port: int) -> None:
        """Listen at `self.port`."""
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._wanted: re.Pattern[bytes] | None = None
        # The name of the upload that is held.
        self.held = ""
        self._released, self.passed_on = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, upload: re.Pattern[bytes]) -> None:
        """Hold the next request that matches. The first group of the pattern is its name."""
        self._wanted = upload

    def release(self) -> None:
        """Pass the held upload on. `passed_on` is set when the server has answered."""
        self._released.set()

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(_MOST_BYTES):
                wanted = self._wanted
                if wanted is not None and (found := wanted.search(data)):
                    self._wanted = None
                    self._stall(client, data, found[1].decode())
                    return
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _stall(self, client: socket.socket, data: bytes, name: str) -> None:
        """Take the whole upload from the client, and pass it on, over another connection, once released.

        The client is paused meanwhile, and need not be answered.
        """
        while not _is_whole(data):
            data += client.recv(_MOST_BYTES)
        self.held = name
        self._released.wait()
        with socket.create_connection(("127.0.0.1", self._server_port)) as again:
            again.sendall(data)
            again.recv(_MOST_BYTES)
        self.passed_on.set()

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(_MOST_BYTES):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return bool(end) and length is not None and len(body) >= int(length[1])
