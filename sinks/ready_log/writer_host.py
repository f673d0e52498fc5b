"""The writer host: a process of each executor that stages messages for all of its tasks, and keeps the shards' writers.

Spark gives a task any idle Python worker of its executor. If the workers kept the writers, most batches would open new
ones. Each new writer fences the previous one and reads the marker again, which takes tens of milliseconds. The host is
a child of the daemon that forks the workers. A task sends it the shard's messages, and waits for its answer.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path

import pyarrow as pa

from conf.errors import DelaylineError
from sinks.ready_log.stage import stage
from sinks.ready_log.writer import StagingPlan
from state.message import decode_chunk

log = logging.getLogger(__name__)

_PARENT_CHECK_S, _ACCEPT_PAUSE_S = 0.5, 0.1
_BACKLOG = 128
_END = b""

# Where the host listens. Set in the daemon, and so in each worker that it forks.
_address: str | None = None


def start_host() -> None:
    """Fork the host from this process, which must not have threads. The host ends soon after this process."""
    global _address  # noqa: PLW0603
    address = f"delayline-{uuid.uuid4().hex[:16]}"
    # Linux needs no file for a socket, which a kill would leave behind.
    address = f"\0{address}" if sys.platform == "linux" else str(Path(tempfile.gettempdir()) / address)
    daemon = os.getpid()
    ready, listening = os.pipe()
    if os.fork() == 0:
        try:
            _serve(address, daemon, listening)
        finally:
            os._exit(1)
    os.close(listening)
    os.read(ready, 1)
    os.close(ready)
    _address = address


class Sent:
    """A shard's messages that were sent to the host, which may not have answered yet. `nbytes` is their size."""

    def __init__(self, nbytes: int, answer: Connection | tuple[int, str]) -> None:
        """Take the connection by which the answer comes, or the answer."""
        self.nbytes, self._answer = nbytes, answer

    def answer(self) -> tuple[int, str]:
        """Wait for the host. Return and raise what `sinks.ready_log.stage.stage` does."""
        if isinstance(self._answer, tuple):
            return self._answer
        with self._answer as connection:
            answer = connection.recv()
        if isinstance(answer, BaseException):
            raise answer
        count, writer = answer
        return count, writer


def stage_by_host(plan: StagingPlan, shard: int, messages: Iterator[pa.Table], attempt: int = 0) -> Sent:
    """Let the host of this executor do what `sinks.ready_log.stage.stage` does.

    Returns when all `messages` are sent. Without a host, this process stages them itself.
    """
    connection = _connected()
    if connection is None:
        return Sent(0, stage(plan, shard, messages, attempt))
    nbytes = 0
    try:
        connection.send((plan, shard, attempt))
        for table in messages:
            packed = _packed(table)
            connection.send_bytes(packed)
            nbytes += packed.size
        connection.send_bytes(_END)
    except BaseException:
        # The host commits nothing more of the shard. The error would keep the connection open.
        connection.close()
        raise
    return Sent(nbytes, connection)


def _connected() -> Connection | None:
    if _address is None:
        return None
    try:
        # The key was drawn in the daemon, so only processes that it has forked know it.
        return Client(_address, authkey=bytes(current_process().authkey))
    except (ConnectionError, EOFError, FileNotFoundError) as problem:
        log.warning("the writer host exited (%r). This worker stages messages itself, with writers of its own", problem)
        return None


def _serve(address: str, daemon: int, listening: int) -> None:
    """Be the host, until the process `daemon` has ended."""
    # A group of its own: Ctrl-C is for the driver, which ends the batch first.
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    # Spark reads the daemon's standard output.
    os.dup2(2, 1)
    with Listener(address, backlog=_BACKLOG) as listener:
        os.write(listening, b"r")
        os.close(listening)
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        while os.getppid() == daemon:
            time.sleep(_PARENT_CHECK_S)
    os._exit(0)


def _accept(listener: Listener) -> None:
    while True:
        try:
            # A client shows the key in a thread of its own: a silent client would keep all others waiting.
            threading.Thread(target=_answer, args=(listener.accept(),), daemon=True).start()
        except (OSError, RuntimeError) as problem:
            # No files or threads are left at the moment. Without this thread each task would wait for ever.
            log.warning("the writer host cannot accept a task's connection: %s", problem)
            time.sleep(_ACCEPT_PAUSE_S)


def _answer(connection: Connection) -> None:
    """Stage the messages that a task sends, and send it the result or the error."""
    # The task may have been killed. Its messages are incomplete then, and are not committed.
    with connection, suppress(AuthenticationError, ConnectionError, EOFError):
        key = bytes(current_process().authkey)
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        plan, shard, attempt = connection.recv()
        # This comes before a writer is opened: the writer of a killed task would fence the writer of the next attempt.
        messages = _begun(_received(connection))
        answer: tuple[int, str] | BaseException
        try:
            answer = stage(plan, shard, messages, attempt)
        except DelaylineError as error:
            answer = error
        except EOFError:
            raise
        except Exception:  # noqa: BLE001
            # As text: the clients' errors cannot be pickled, and this says where it was raised.
            answer = RuntimeError(f"the writer host failed to stage messages:\n{traceback.format_exc()}")
        # The task reads the answer when it has sent everything.
        for _ in messages:
            pass
        connection.send(answer)


def _begun(messages: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Return `messages` once the first table, or the end, has come."""
    first = list(islice(messages, 1))
    return chain(first, messages)


def _packed(messages: pa.Table) -> pa.Buffer:
    # Not `encode_chunk`: to compress would take longer than to send.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, messages.schema) as writer:
        writer.write_table(messages)
    return sink.getvalue()


def _received(connection: Connection) -> Iterator[pa.Table]:
    while packed := connection.recv_bytes():
        yield decode_chunk(packed)
