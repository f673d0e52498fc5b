"""The error by which a query has ended, as Delayline names it."""

from __future__ import annotations

import logging
import re

from pyspark.sql.streaming import StreamingQuery

from conf import errors
from conf.errors import ApplicationHeld, BrokerUnreachable, DelaylineError, QueryFailed
from conf.kafka.rights import right_missing
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from streaming.storage.failures import innermost_cause, storage_failure, text_of_query
from streaming.storage.paths import storage_path

log = logging.getLogger(__name__)


def cause_of_end(query: StreamingQuery, settings: Settings, lease: HeldLease) -> DelaylineError:
    """Return the error to raise for a query that has ended. The error of a lost lease or an outage goes first."""
    failed = failure_of(query, settings)
    try:
        lease.check(limit_s=0)
    except ApplicationHeld as taken:
        # A holder that lost the lease may fail in many ways, and this is the cause of all of them.
        return taken
    except BrokerUnreachable as outage:
        # Spark's own error names only what it waited for.
        return outage if type(failed) is QueryFailed else failed
    return failed


def failure_of(query: StreamingQuery, settings: Settings) -> DelaylineError:
    """Return the error by which the query ended.

    That is, in this order: the last Delayline error in Spark's text, a right that Java's client lacks, a failure of the
    storage, or QueryFailed with the innermost cause.
    """
    text = text_of_query(query)
    log.debug("the query failed: %s", text)
    own = re.findall(r"^(?:.*\W)?conf\.errors\.(\w+): [a-z-]+: (.+)$", text, re.MULTILINE)
    if own:
        name, sentence = own[-1]
        kind: type[DelaylineError] = getattr(errors, name)
        return kind(sentence)
    if barred := re.findall(r"TopicAuthorizationException: Not authorized to access topics: \[(.*)\]", text):
        return right_missing("Read", f"topic {barred[-1]}")
    if failure := storage_failure(text, storage_path(settings)):
        return failure
    return QueryFailed(innermost_cause(text))
