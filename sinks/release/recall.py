"""Recalls staged messages that are not released: the effect of a request in a shard.

The shard of a message does not follow from its id. So a request that the job cannot decide goes from shard to shard, as
a chunk in the ready log of each, until one has the message. That one removes it and answers `cancelled`. A shard that
has released it a short time ago answers `too-late`, and so does the last one. Each step is part of a transaction of the
shard that takes it. A request that the message be due at once goes the same way. The shard that has the message
releases it in the transaction of the answer, which is `due-now`.

A recalled message is still in the ready log. It is left out when its chunk is decoded, and after a crash because of the
request, which is read again: until everything is released that was due before the messages that the request may have
recalled, `LogPosition.lowest` is not above it. Chunks that are taken in after the request are not concerned: an input
topic that was created again gives ids a second time.

The same message may be requested twice. So a shard remembers for `REMEMBERED_MS` which messages it has recalled. After
that, the job knows them from the recalled topic (`state.recalled`). A shard that may have forgotten answers `unknown`,
never a wrong `too-late`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from sinks.internal_topics.position import Place
from sinks.release.removals import Fate, Removal
from state.answers import Undecided
from state.cancel import REQUEST_ID, MessageId, asked_by
from state.kinds import requests_in
from state.message_ids import ID, NO_IDS, Ids, ids_in, ids_of
from state.order import OrderKey


def removed_before(place: Place, near_taken_in: int, requests: pa.Table) -> Removal:
    """Return the messages that `requests`, of the chunk at `place`, may have taken out before a crash.

    The near log had been taken in up to `near_taken_in` by then.
    """
    return removal_by(terms_of(requests), place, near_taken_in, ids_in(asked_by(requests)), Fate.UNCERTAIN)


def removal_by(
    terms: Sequence[Undecided], place: Place, near_taken_in: int, ids: Ids, fate: Fate, forget_ms: int = 0
) -> Removal:
    """Return that requests with these `terms` have taken out the messages `ids`. The others are fields of `Removal`."""
    until = OrderKey(max(each.due_before_ms for each in terms), "", 0, 0)
    # After a fresh start, requests of the checkpoint before may be passed on with the others.
    return Removal(place, near_taken_in, until, max(each.epoch for each in terms), ids, fate, forget_ms)


def wanted_now(requests: pa.Table) -> Ids:
    """Return the messages to be due at once, by the first of several `requests` for each."""
    delivers = [each.delivers for each in terms_of(requests)]
    # There are mostly no such requests, and reading the ids takes longer than this check.
    if not any(delivers):
        return NO_IDS
    table = asked_by(requests)
    own, asked = (zip(*(table.column(name).to_pylist() for name in names), strict=True) for names in (REQUEST_ID, ID))
    first: dict[MessageId, bool] = {}
    for _, message, now in sorted(zip(own, asked, delivers, strict=True)):
        first.setdefault(message, now)
    return ids_of(message for message, now in first.items() if now)


def terms_of(requests: pa.Table) -> list[Undecided]:
    """Return the terms on which each of `requests` is decided."""
    # The terms of a batch are all the same.
    values = requests.column("value").to_pylist()
    known = {value: Undecided.from_bytes(value) for value in set(values)}
    return [known[value] for value in values]


def uncounted(messages: pa.Table, taken_in: bool) -> int:
    """Return how many of `messages`, of one chunk, are requests that do not count as staged in this shard and waiting.

    These are all requests if the chunk is `taken_in`; otherwise those that another shard has passed on.
    """
    requests = requests_in(messages)
    return requests.num_rows if taken_in else sum(each.left < each.shards - 1 for each in terms_of(requests))


def next_shards(passed_on: pa.Table, shard: int) -> Iterable[tuple[int, pa.Table]]:
    """Yield the shards that requests are passed on to from `shard`, and the requests."""
    following = np.array([(shard + 1) % each.shards for each in terms_of(passed_on)])
    for number in np.unique(following).tolist():
        yield number, passed_on.filter(pa.array(following == number))
