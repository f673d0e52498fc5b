"""When messages expire, by the header that the policy `expiry_header` of their input topic names.

The release finds messages that expire later, while they wait (`sinks.release.expiry`).
"""

from __future__ import annotations

from conf.rejected import BadExpiry, Expired
from sources.intake.header_columns import Headers, Ints, Rejections, parse_distinct
from state.header_values import header_text, parse_instant


def check_expiry(headers: Headers, name: str, deliver_at: Ints, rejections: Rejections) -> None:
    """Reject the rows with a header `name` that cannot be read, or with an instant before `deliver_at` (epoch ms)."""
    rows, values = headers.single(name, BadExpiry, rejections)

    def instant_of(value: bytes | None) -> int:
        try:
            return parse_instant(header_text(value))
        except ValueError as problem:
            raise BadExpiry(f"{name} is epoch ms or ISO-8601 with an offset: {problem}") from None

    instants = parse_distinct(rows, values, instant_of, rejections)
    rejections.reject(rows[instants < deliver_at[rows]], Expired(f"by its {name} it expires before it is due"))
