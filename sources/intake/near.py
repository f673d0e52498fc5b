"""Accepting messages that are due soon, by the rules of `accept`: a forwarder takes them past the batches.

A forwarder takes messages that do not depend on other messages. All others are left to the batches: requests, messages
that replace others, have names or repeat, and dead letters, which may be stubs. So are messages that are due later, and
records without a timestamp. No policy makes a message that is due soon depend on others: `max_waiting` refuses only
messages that wait.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sources.intake.accept import Kind, accept_group, divided
from sources.intake.accepted import ASKED, NAME
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import is_message, repeats
from state.message import MESSAGE_SCHEMA, empty_messages


class Near(NamedTuple):
    """The messages that a forwarder takes from a table of records.

    - `messages`: these messages, as `MESSAGE_SCHEMA`, in no order
    - `is_urgent`: whether it leaves other records than messages that are due later
    """

    messages: pa.Table
    is_urgent: bool


def accept_near(records: pa.Table, batch_settings: BatchSettings, clock_ms: int, before_ms: int) -> Near:
    """Accept the `records` that are plain messages and due before `before_ms` (epoch ms).

    `records` has the columns of `sources.intake.kafka_reader`, and `clock_ms` is the forwarder's clock, epoch ms.
    """
    taken: list[pa.Table] = []
    is_urgent = False
    for _, own, kind in divided(records, batch_settings):
        if kind is not Kind.MESSAGES:
            is_urgent = True
            continue
        messages = accept_group(own, kind, batch_settings, clock_ms)
        is_plain = is_message(messages) & ~repeats(messages)
        is_plain &= np.asarray(pc.and_(messages.column(ASKED).is_null(), messages.column(NAME).is_null()))
        # The delay of a record without a timestamp (-1) would begin at this host's clock. If that is behind, the
        # message would be early.
        is_plain &= own.column("timestamp_ms").to_numpy() >= 0
        is_urgent |= not is_plain.all()
        is_near = is_plain & (messages.column("deliver_at_ms").to_numpy() < before_ms)
        if is_near.any():
            taken.append(messages.select(MESSAGE_SCHEMA.names).filter(pa.array(is_near)))
    return Near(pa.concat_tables(taken) if taken else empty_messages(), is_urgent)
