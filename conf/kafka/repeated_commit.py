"""Whether a commit request may have been sent twice.

librdkafka repeats a commit request when its connection is lost or its answer takes too long, and reports neither: the
commit succeeds, no callback is called, and only a log line of level 6 mentions the connection. The first copy may
reach the broker later. Since librdkafka keeps its epoch (librdkafka#5423), the broker then takes it for the commit of
the producer's next transaction, which is not complete. A new producer has another epoch, and the broker refuses the
copy. So a producer must not begin another transaction if its commit may have been repeated.

Only the duration of a commit is certain: the client waits before it repeats a request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

# The client's default, and the least that is allowed: with a smaller value a commit would be repeated sooner than most
# take.
_BACKOFF = "retry.backoff.ms"
_BACKOFF_MS = 100
# The client varies the backoff by a fifth.
_SOONEST = 0.8

SLOW_COMMITS_REMEDY = "If commits always take more than 80 ms on this cluster, raise kafka.retry.backoff.ms"


def repeat_backoff(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by which a client with `options` repeats a request later than nearly all commits take."""
    backoff_ms = max(int(options.get(_BACKOFF, _BACKOFF_MS)), _BACKOFF_MS)
    most_ms = max(int(options.get("retry.backoff.max.ms", 1_000)), backoff_ms)
    return {_BACKOFF: str(backoff_ms), "retry.backoff.max.ms": str(most_ms)}


def sent_once(begun_s: float, options: Mapping[str, str]) -> bool:
    """Return whether a commit that began at `begun_s` (monotonic) and has just succeeded was certainly sent once.

    `options` are the client's options, including the result of `repeat_backoff`.
    """
    return time.monotonic() - begun_s < _SOONEST * int(options[_BACKOFF]) / 1000
