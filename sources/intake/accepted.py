"""What records are accepted as: messages, and what the requests among them ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sources.intake.header_columns import Ints, one_array, without_headers
from sources.intake.partitioner import partitions_for
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import REQUEST, repeats
from state.message import HEADERS, MESSAGE_SCHEMA
from state.order import request_due_ms
from state.repeats.occurrences import waiting_in
from state.repeats.schedule import NUMBER_HEADER, SCHEDULE_HEADER


class Accepted(NamedTuple):
    """Accepted records.

    - `messages`: rows of `MESSAGE_SCHEMA`
    - `asks`: what the requests among them ask for (`ASK_SCHEMA`)
    """

    messages: pa.Table
    asks: pa.Table

    def without_headers(self, rows: Ints, names: Sequence[str]) -> Accepted:
        """Return these, but the messages in `rows` without their headers of these `names`."""
        at = self.messages.schema.get_field_index("headers")
        headers = one_array(self.messages.column(at).cast(HEADERS))
        return self._replace(messages=self.messages.set_column(at, "headers", without_headers(headers, rows, names)))

    def with_requests(self, requests: pa.Table, asks: pa.Table) -> Accepted:
        """Return these and behind them `requests`, as messages, which ask for `asks`."""
        return Accepted(pa.concat_tables([self.messages, requests]), pa.concat_tables([self.asks, asks]))


def request_rows(messages: pa.Table, keys: pa.Array, batch_settings: BatchSettings, clock_ms: int) -> pa.Table:
    """Return the requests that come with accepted `messages`, as messages with the same ids and `keys` (binary)."""
    published_ms, dues_ms = (messages.column(name).to_numpy() for name in ("timestamp_ms", "deliver_at_ms"))
    at_once = request_due_ms(published_ms, clock_ms, dues_ms)
    # No later occurrence may have its order key either.
    repeating = np.flatnonzero(repeats(messages))
    at_once[repeating] += _have_instants(messages.take(pa.array(repeating)), at_once[repeating])
    count = messages.num_rows
    headers = messages.column("headers")
    if len(repeating):
        # An answer has what the publisher sent.
        headers = without_headers(one_array(headers.cast(HEADERS)), repeating, (SCHEDULE_HEADER, NUMBER_HEADER))
    partitions = np.full(count, batch_settings.partitions[batch_settings.results], dtype=np.int64)
    input_partitions = messages.column("partition").to_numpy().astype(np.int64)
    columns = {name: messages.column(name) for name in MESSAGE_SCHEMA.names} | {
        "deliver_at_ms": at_once,
        "kind": np.full(count, REQUEST, dtype=np.int8),
        "output_topic": pa.array([batch_settings.results] * count, pa.string()),
        "output_partition": pa.array(partitions_for(keys, input_partitions, partitions), pa.int32()),
        "key": keys,
        "value": pa.nulls(count),
        "headers": headers,
    }
    return pa.table(columns).cast(MESSAGE_SCHEMA)


def _have_instants(messages: pa.Table, instants_ms: Ints) -> npt.NDArray[np.bool_]:
    """Return which of `messages`, which repeat, may come again at these instants (epoch ms), and so not a ms later."""
    found = np.zeros(len(instants_ms), dtype=bool)
    for row, (waiting, at_ms) in enumerate(zip(waiting_in(messages), instants_ms.tolist(), strict=True)):
        first_ms = waiting.occurrence.at_ms
        found[row] = first_ms < at_ms == waiting.schedule.rule.after(first_ms, at_ms)
    return found
