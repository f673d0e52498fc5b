"""Names of headers that differ only by case from a name that has a meaning.

To Kafka they are other names. But a publisher that writes `Deliver-After` means `deliver-after`. So a record with such
a name is refused: otherwise the message would go out at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import quoted
from conf.rejected import HeaderCase
from sources.intake.header_columns import Headers, Rejections, only, parse_distinct
from sources.intake.preset_headers import Preset
from state.cancel import CANCEL_HEADER, CONDITION_HEADER, DELIVER_NOW_HEADER, OPERATOR_HEADER, REPLACES_HEADER
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.kinds import Mask
from state.names import ANSWER_HEADER, CANCEL_NAME_HEADER, NAME_HEADER
from state.repeats.schedule import REPEAT_HEADERS

# The headers of requests and names.
REQUEST_HEADERS = (
    CANCEL_HEADER, DELIVER_NOW_HEADER, REPLACES_HEADER, CONDITION_HEADER, OPERATOR_HEADER, NAME_HEADER,
    CANCEL_NAME_HEADER, ANSWER_HEADER,
)  # fmt: skip


def message_headers(batch_settings: BatchSettings, policy: DelayPolicy, presets: Sequence[Preset]) -> Iterator[str]:
    """Yield the names of all headers that have a meaning for messages of a topic with `policy` and `presets`."""
    yield from REQUEST_HEADERS
    yield from REPEAT_HEADERS
    yield batch_settings.headers.deliver_to
    if policy.expiry_header:
        yield policy.expiry_header
    has_delays = policy.fixed_ms is None
    if has_delays:
        yield from batch_settings.headers.delays
    for preset in presets:
        yield from preset.others
        # The schedule header of an envelope shows that it is one.
        if has_delays or preset.named:
            yield from preset.delays


def check_case(headers: Headers, names: Sequence[str], rejections: Rejections) -> None:
    """Reject the rows with a header that is one of `names` only in another case."""
    distinct = headers.keys.unique()
    is_wrong = in_any_case(distinct, names) & ~np.asarray(pc.is_in(distinct, pa.array(names, pa.string())))
    if not is_wrong.any():
        return
    meant = {name.encode().lower(): name for name in names}

    def refuse(written: bytes | None) -> int:
        text = (written or b"").decode()
        name = meant[text.encode().lower()]
        raise HeaderCase(f"the header {quoted(text)} differs from {name} by its case alone: write {name}")

    has_it = np.asarray(pc.is_in(headers.keys, distinct.filter(pa.array(is_wrong))))
    rows, written = only(has_it, headers.rows, headers.keys)
    parse_distinct(rows, written.cast(pa.binary()), refuse, rejections)


def in_any_case(keys: pa.Array, names: Sequence[str]) -> Mask:
    """Return which of `keys` are one of `names`, ignoring the case of a to z."""
    return np.asarray(pc.is_in(pc.ascii_lower(keys), pc.ascii_lower(pa.array(names, pa.string()))))
