"""Messages that have taken over another due time, as rows of the table of sealed buckets.

A message with a name may take over the due time of the message that it replaces (`state.names.KEEP_TIME`). Its own
record does not say so. Its batch therefore stores the due time, before it stages anything. A rebuild accepts the record
with this due time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.buckets.id_rows import id_rows
from state.buckets.parts import IdRows
from state.message_ids import ID, ID_SCHEMA, places_in

# The due time that each message has taken over, and the later of that and its own, both epoch ms. Until the later one
# the row is needed: by its own due time, a staged message would look to a rebuild as if it waited.
RETIMED_SCHEMA = ID_SCHEMA.append(pa.field("deliver_at_ms", pa.int64())).append(pa.field("until_ms", pa.int64()))


def retimed_rows(retimed: pa.Table, bucket: int) -> pa.Table:
    """Return the rows of `STORED_SCHEMA` for the messages `retimed` in the batch that seals `bucket`."""
    columns = {name: retimed.column(name) for name in (*ID, "deliver_at_ms")}
    return id_rows(IdRows.RETIMED, bucket, columns | {"max_deliver_at_ms": retimed.column("until_ms")})


def due_times(messages: pa.Table, retimed: pa.Table) -> npt.NDArray[np.int64]:
    """Return when each of `messages` is due, epoch ms: by `retimed`, or else by its own due time.

    Both have the columns `ID` and deliver_at_ms.
    """
    dues = messages.column("deliver_at_ms").to_numpy().copy()
    places = places_in(retimed, messages)
    is_retimed = places >= 0
    dues[is_retimed] = retimed.column("deliver_at_ms").to_numpy()[places[is_retimed]]
    return np.asarray(dues)
