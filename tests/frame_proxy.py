"""A TCP proxy in front of a broker. It delays one commit request, as a network may, and rewrites nothing."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

from confluent_kafka import KafkaError

from streaming.local.free_port import free_port

_HOST = "127.0.0.1"
_PRODUCE, _ADD_PARTITIONS, _END_TXN = 0, 24, 26
# The answers of a broker to a producer that has been replaced.
FENCED = {KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_TIMEOUT_S = 60.0


class FrameProxy:
    """Passes requests at `address` on to the broker, which listens on `broker_port`. A context manager.

    After `hold`, the next commit request waits here, and its client loses the connection. The request goes on to the
    broker, by its old connection, when the next transaction of the same id has added partitions and written records.
    The requests that follow these records wait for the broker's answer to it.
    """

    def __init__(self) -> None:
        self.broker_port = free_port(_HOST)
        self._listener = socket.create_server((_HOST, 0))
        self.address = f"{_HOST}:{self._listener.getsockname()[1]}"
        self._connections: list[_Connection] = []
        self._armed = threading.Event()
        self._held: _Held | None = None
        self._is_held = threading.Event()

    def hold(self) -> None:
        """Hold the next commit request."""
        self._held = None
        self._is_held.clear()
        self._armed.set()

    def wait_until_held(self) -> None:
        """Wait until a commit request is held."""
        assert self._is_held.wait(_TIMEOUT_S), "no commit request came"

    @property
    def answer(self) -> int | None:
        """The broker's error code for the request that was held, once it has reached the broker."""
        return None if self._held is None else self._held.error_code

    def __enter__(self) -> FrameProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((_HOST, self.broker_port))
            except OSError:
                client.close()
                continue
            self._connections.append(connection := _Connection(client, broker))
            threading.Thread(target=self._pass_requests, args=(connection,), daemon=True).start()
            threading.Thread(target=connection.pass_answers, daemon=True).start()

    def _pass_requests(self, connection: _Connection) -> None:
        try:
            while True:
                request = _Request(connection.read_request())
                if request.key == _END_TXN and self._armed.is_set():
                    self._armed.clear()
                    self._held = _Held(request, connection)
                    connection.lose_client()
                    self._is_held.set()
                    return
                self._pass(request, connection)
        except OSError:
            connection.close()

    def _pass(self, request: _Request, connection: _Connection) -> None:
        held = self._held
        if held is None or held.error_code is not None or not request.names(held.request.transactional_id):
            connection.send(request)
        elif request.key == _ADD_PARTITIONS:
            connection.ask(request)
            held.next_has_begun = True
        elif request.key == _PRODUCE and held.next_has_begun:
            connection.ask(request)
            # After the correlation id, the answer has a throttle time and the error code.
            (held.error_code,) = struct.unpack_from(">h", held.connection.ask(held.request), 12)
        else:
            connection.send(request)


class _Request:
    """A request with the length before it: `key` says of which kind it is, `correlation` which answer belongs to it."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.key, _, self.correlation, client_length = struct.unpack_from(">hhih", frame, 4)
        self._body = 14 + max(client_length, 0)

    @property
    def transactional_id(self) -> bytes:
        """The transactional id of an EndTxn request as librdkafka writes it."""
        (length,) = struct.unpack_from(">h", self.frame, self._body)
        return self.frame[self._body + 2 : self._body + 2 + length]

    def names(self, transactional_id: bytes) -> bool:
        """Return whether the body begins with `transactional_id`, in either form of a text."""
        forms = struct.pack(">h", len(transactional_id)), bytes([len(transactional_id) + 1])
        # The header of a newer form has one byte more.
        start = self.frame[self._body : self._body + 3 + len(transactional_id)]
        return any(form + transactional_id in start for form in forms)


class _Held:
    """A commit request that has not reached the broker yet, and the broker's answer once it has."""

    def __init__(self, request: _Request, connection: _Connection) -> None:
        self.request = request
        self.connection = connection
        self.next_has_begun = False
        self.error_code: int | None = None


class _Connection:
    """A client's connection, and the one to the broker that belongs to it."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self._client, self._broker = client, broker
        self._awaited: dict[int, threading.Event] = {}
        self._answers: dict[int, bytes] = {}

    def read_request(self) -> bytes:
        return _read_frame(self._client)

    def send(self, request: _Request) -> None:
        self._broker.sendall(request.frame)

    def ask(self, request: _Request) -> bytes:
        """Send `request`, and return the broker's answer, once the client has it too."""
        self._awaited[request.correlation] = answered = threading.Event()
        self.send(request)
        assert answered.wait(_TIMEOUT_S), "the broker did not answer"
        return self._answers.pop(request.correlation)

    def pass_answers(self) -> None:
        """Pass the broker's answers on until it closes the connection."""
        with suppress(OSError):
            while True:
                frame = _read_frame(self._broker)
                # A client that is gone needs no answer.
                with suppress(OSError):
                    self._client.sendall(frame)
                (correlation,) = struct.unpack_from(">i", frame, 4)
                if (answered := self._awaited.pop(correlation, None)) is not None:
                    self._answers[correlation] = frame
                    answered.set()
        self.close()

    def lose_client(self) -> None:
        _close(self._client)

    def close(self) -> None:
        _close(self._client)
        _close(self._broker)


def _read_frame(source: socket.socket) -> bytes:
    head = _read(source, 4)
    return head + _read(source, struct.unpack(">i", head)[0])


def _read(source: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = source.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionResetError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        # Wakes the thread that reads from it.
        end.shutdown(socket.SHUT_RDWR)
    end.close()
