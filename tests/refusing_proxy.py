"""A TCP proxy in front of a broker, which changes the answers to some requests: errors that no setting brings about."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

_PRODUCE, _END_TXN, _DESCRIBE_CONFIGS = 0, 26, 32
# The first versions with compact arrays and strings.
_FLEXIBLE_PRODUCE, _FLEXIBLE_END_TXN, _FLEXIBLE_DESCRIBE_CONFIGS = 9, 3, 4


class RefusingProxy:
    """Listens on `port`, and passes on what goes to and comes from a broker at `target`, once that is set.

    `refuse` has the error code with which each topic answers, and how often. `fail_commits` has the code of each
    commit, which the broker gets as an abort. `fail_descriptions` has the code for the first topic of each request for
    configurations. 0 means success.
    """

    def __init__(self) -> None:
        self.target = 0
        self.refuse: dict[str, tuple[int, int]] = {}
        self.fail_commits = self.fail_descriptions = 0
        # How often an answer was changed.
        self.changed = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no connection any more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        for each in (client, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The requests with answers of interest, by correlation id: the key and the version.
        asked: dict[int, tuple[int, int]] = {}
        threading.Thread(target=self._pass, args=(client, broker, asked, True), daemon=True).start()
        self._pass(broker, client, asked, False)

    def _pass(
        self, source: socket.socket, sink: socket.socket, asked: dict[int, tuple[int, int]], is_request: bool
    ) -> None:
        with suppress(OSError):
            for frame in _frames(source):
                passed = self._request(frame, asked) if is_request else self._answer(frame, asked)
                sink.sendall(struct.pack(">i", len(passed)) + passed)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _request(self, frame: bytearray, asked: dict[int, tuple[int, int]]) -> bytearray:
        key, version, correlation = struct.unpack_from(">hhi", frame)
        if (
            key == _PRODUCE
            or (key == _END_TXN and self.fail_commits)
            or (key == _DESCRIBE_CONFIGS and self.fail_descriptions)
        ):
            asked[correlation] = key, version
        if key == _END_TXN and self.fail_commits:
            # Whether to commit is the last field; tags may follow.
            frame[-2 if version >= _FLEXIBLE_END_TXN else -1] = 0
        return frame

    def _answer(self, frame: bytearray, asked: dict[int, tuple[int, int]]) -> bytearray:
        key, version = asked.pop(struct.unpack_from(">i", frame)[0], (-1, 0))
        if key == _END_TXN:
            # Behind the correlation id, tags, and the time of throttling.
            struct.pack_into(">h", frame, 9 if version >= _FLEXIBLE_END_TXN else 8, self.fail_commits)
            self.changed += 1
        if key == _DESCRIBE_CONFIGS:
            # Behind the same, and how many topics there are.
            struct.pack_into(">h", frame, 10 if version >= _FLEXIBLE_DESCRIBE_CONFIGS else 12, self.fail_descriptions)
            self.changed += 1
        if key == _PRODUCE:
            for topic in list(self.refuse):
                self._refuse(frame, topic, version >= _FLEXIBLE_PRODUCE)
        return frame

    def _refuse(self, frame: bytearray, topic: str, is_flexible: bool) -> None:
        name = topic.encode()
        length = bytes([len(name) + 1]) if is_flexible else struct.pack(">h", len(name))
        at = frame.find(length + name)
        with self._lock:
            code, left = self.refuse[topic]
            if at < 0 or not left:
                return
            self.refuse[topic] = code, left - 1
            self.changed += 1
        # Behind the name: how many partitions, and the number of the first one.
        at += len(length + name) + (1 if is_flexible else 4) + 4
        struct.pack_into(">h", frame, at, code)


def _frames(source: socket.socket) -> Iterator[bytearray]:
    while True:
        yield _exactly(source, struct.unpack(">i", _exactly(source, 4))[0])


def _exactly(source: socket.socket, count: int) -> bytearray:
    received = bytearray()
    while len(received) < count:
        piece = source.recv(count - len(received))
        if not piece:
            raise OSError("closed")
        received += piece
    return received
