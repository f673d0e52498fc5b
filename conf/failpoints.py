"""Failpoints: named places where a test makes the service die or fail, instead of sleeping and hoping.

The test seam of the crash matrix. Off unless the environment says otherwise:
`DELAYLINE_FAILPOINT=<name>[@<n>]=<action>` where the n-th passing (default 1, counted per process) of the
point `<name>` takes `<action>`:

- `kill`: SIGKILL to the driver and everything it started (`DELAYLINE_FAILPOINT_ROOT`, set by the driver);
- `raise`: an `InjectedFailure`, as a failed task or a failed batch would be. Only in a task's first attempt.

Points are passed in the order in which a batch goes through them; `POINTS` is the whole list.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import psutil

from conf.errors import InjectedFailure, SettingError

VARIABLE = "DELAYLINE_FAILPOINT"
ROOT_VARIABLE = "DELAYLINE_FAILPOINT_ROOT"

POINTS = {
    "recovering": "the driver has read the checkpoint and the tables, and has not started the query",
    "batch-begun": "a batch's steps begin; its offsets are in the offset log, nothing else is done",
    "state-held": "the state stage is done and its state is written; nothing is delivered or sealed",
    "transaction-open": "messages are produced in a transaction that is not committed",
    "transaction-committed": "a delivery transaction is committed, more may follow",
    "delivered": "every transaction of the batch is committed; the bucket may not be sealed yet",
    "sealing": "the rows of a bucket are on their way; no commit has made it exist",
    "sealed": "the Delta commit that makes the bucket is done",
    "merging": "buckets are merged beside the batches; no commit has replaced them",
    "merged": "the Delta commit that replaces merged buckets is done, and the driver does not know it yet",
    "cleaning": "delivered time partitions are deleted beside the batches, and their metadata is still there",
    "batch-done": "all of the batch is done, and Spark has not written its commit log",
}

# Of `delayline rescale` and `delayline rebuild`.
SUCCESSION_POINTS = {
    "rest-sealed": "what the earlier checkpoint left is sealed, and the new one is not begun",
    "successor-born": "the new checkpoint is complete and announced, and not in its place yet",
    "predecessor-moved": "the earlier checkpoint is put aside, and the new one is not in its place yet",
}

_PASSING = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_passed: Counter[str] = Counter()


def failpoint(name: str, attempt: int = 0) -> None:
    """Pass the point `name`; die or raise here if the environment asks for it.

    `attempt` is the number of times the running task has failed before.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    point, passing, action = parse_failpoint(wanted)
    if point != name:
        return
    _passed[name] += 1
    if _passed[name] != passing:
        return
    if action == "kill":
        kill_tree(int(os.environ[ROOT_VARIABLE]))
    elif attempt == 0:
        raise InjectedFailure(f"failpoint {name}, passing {passing}")


def parse_failpoint(text: str) -> tuple[str, int, str]:
    """Return (point, passing, action). Raises SettingError for an unknown point or action."""
    where, _, action = text.partition("=")
    point, _, passing = where.partition("@")
    if (
        point not in POINTS | SUCCESSION_POINTS
        or action not in {"kill", "raise"}
        or not _PASSING.fullmatch(passing or "1")
    ):
        raise SettingError(
            f"{VARIABLE}={text!r}: write <point>[@<n>]=kill or =raise, with a point of "
            f"{', '.join(POINTS | SUCCESSION_POINTS)}"
        )
    return point, int(passing or 1), action


def kill_tree(root: int) -> None:
    """SIGKILL the process `root` and all its descendants, all stopped before so that none is spared.

    The caller may be one of them.
    """
    parent = psutil.Process(root)
    family: set[psutil.Process] = set()
    # A process can start another between the look and the stop, but not after it.
    while new := {parent, *parent.children(recursive=True)} - family:
        _signal(new, signal.SIGSTOP)
        family |= new
    _signal(family, signal.SIGKILL)
    if any(process.pid == os.getpid() for process in family):
        os.kill(os.getpid(), signal.SIGKILL)


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those of `processes` that still run, except the caller."""
    for process in processes:
        if process.pid != os.getpid():
            # One that is gone is what was wanted.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
