"""Failpoints: named places in the code where a test makes the service die, stop or fail.

The crash matrix uses them. They are off unless the environment has `DELAYLINE_FAILPOINT=<name>[@<n>]=<action>`.
Then the n-th time (default 1, counted per process) that the point `<name>` is passed, the action is taken:

- `kill`: send SIGKILL to the driver and its descendants. The driver sets its pid in `DELAYLINE_FAILPOINT_ROOT`;
  without it, the process itself is meant.
- `pause`: send SIGSTOP to the same processes, as if their host slept. A test sends SIGCONT.
- `raise`: raise InjectedFailure, as a failed task or a failed batch would. Only in a task's first attempt.

A batch passes the points in the order of `POINTS`.
"""

from __future__ import annotations

import os
import re
from collections import Counter

from conf.errors import InjectedFailure, SettingError

VARIABLE = "DELAYLINE_FAILPOINT"
ROOT_VARIABLE = "DELAYLINE_FAILPOINT_ROOT"

POINTS = {
    "recovering": "the driver has read the checkpoint and the tables, and has not started the query",
    "batch-begun": "a batch's steps begin; its offsets are in the offset log, nothing else is done",
    "claims-read": "the batch has the claims about its offsets; it has read no record",
    "state-held": "the state stage is done and its state is written; nothing is staged or sealed",
    "cancelled": "the ids that the batch cancels are stored, with the bucket; none of its answers is staged",
    "transaction-open": "due messages are written to the ready log in a transaction that is not committed",
    "transaction-committed": "a transaction of staged messages is committed; more may follow",
    "staged": "every transaction of the batch is committed; the bucket may not be sealed yet",
    "sealing": "the lease is checked before a bucket's rows are written; no commit has added it to the table",
    "sealed": "the Delta commit that adds the bucket is done",
    "following": "occurrences of repeating messages are staged; those that follow are not stored",
    "followed": "the Delta commit that stores what follows is done",
    "merging": "a slice of buckets is merged next to the batches; no commit has stored it",
    "slice-merged": "a slice of a merge is stored; the merged buckets are not replaced",
    "merged": "the Delta commit that replaces merged buckets is done; the driver does not know it yet",
    "cleaning": "parts of the table with staged messages only are about to be deleted",
    "batch-done": "all of the batch is done; Spark has not written its commit log",
}

# The points of a release process.
RELEASE_POINTS = {
    "shards-assigned": "the group has given shards to the process; none of them is open",
    "ring-fencing": "one more producer of a shard's ring is fenced; others may not be",
    "position-read": "a shard's ring is fenced and its position is read; nothing of the ready log is",
    "transaction-filled": "messages are written ahead to their output topics, in a transaction that is not ended",
    "transaction-ended": "a transaction of released messages is committed; the next ones may be filled",
    "shards-revoked": "shards are closed, and the group does not know yet that they are free",
}

# The points of a forwarder.
FORWARD_POINTS = {
    "lanes-assigned": "the group has given lanes to the process; none of them is open",
    "lane-opened": "a lane's earlier owners are fenced, and its newest claim is read; nothing is taken",
    "near-filled": "messages and the claim on them are written in a transaction that is not committed",
    "near-claimed": "a transaction of messages and the claim on them is committed",
    "lanes-revoked": "lanes are closed, and the group does not know yet that they are free",
}

# The points of a job that takes over the lane of a forwarder.
LANE_POINTS = {
    "lane-fenced": "the lane's forwarder is fenced and its newest claim read; the job has claimed nothing",
    "lane-claimed": "the job has claimed the records of its batch; the batch continues",
}

# The points of `delayline rescale` and `delayline rebuild`.
SUCCESSION_POINTS = {
    "rest-sealed": "all that the earlier checkpoint left waiting is sealed; the new one is not begun",
    "successor-initialized": "the new checkpoint is complete; it is not announced, and no pointer names it",
    "successor-born": "the new checkpoint is complete and announced; no pointer names it yet",
    "switched-over": "the pointer names the new checkpoint; the command has not ended",
}

ALL_POINTS = POINTS | RELEASE_POINTS | FORWARD_POINTS | LANE_POINTS | SUCCESSION_POINTS

_PASSING = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_passed: Counter[str] = Counter()


def failpoint(name: str, attempt: int = 0) -> None:
    """Pass the point `name`: die or raise here if the environment asks for it.

    `attempt` is how often the running task has failed before.
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
    if action in ("kill", "pause"):
        # Here and not above: the service runs without psutil.
        from conf.process_tree import kill_tree, pause_tree

        end_or_pause = kill_tree if action == "kill" else pause_tree
        end_or_pause(int(os.environ.get(ROOT_VARIABLE, os.getpid())))
    elif attempt == 0:
        raise InjectedFailure(f"failpoint {name}, passing {passing}")


def parse_failpoint(text: str) -> tuple[str, int, str]:
    """Return (point, passing, action). Raises SettingError for an unknown point or action."""
    where, _, action = text.partition("=")
    point, _, passing = where.partition("@")
    if point not in ALL_POINTS or action not in {"kill", "pause", "raise"} or not _PASSING.fullmatch(passing or "1"):
        raise SettingError(
            f"{VARIABLE}={text!r}: write <point>[@<n>]=kill, =pause or =raise. The points are {', '.join(ALL_POINTS)}"
        )
    return point, int(passing or 1), action
