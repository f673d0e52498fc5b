"""Checks the order in each output partition: by due time, then input topic, partition and offset."""

from __future__ import annotations

from streaming.judge.acceptance import Held
from streaming.judge.contract import Fault, Finding
from streaming.judge.record import OrderKey, Published, Received


class OrderCheck:
    """Takes the records of each output partition in the order of their offsets."""

    def __init__(self) -> None:
        # The largest order key so far in each output partition: of all messages, and of those that batches took.
        self._largest: dict[tuple[str, int], OrderKey] = {}
        self._largest_of_batches: dict[tuple[str, int], OrderKey] = {}

    def take(self, record: Received, message: Published, held: Held, is_forwarded: bool = False) -> Finding | None:
        """Return a finding if the message is held to an order, but follows a message with a larger order key.

        A message that is held to no order may come late. Its own order key still counts for the messages after it.
        """
        before = _grow(self._largest, record, message)
        if not is_forwarded:
            before_of_batches = _grow(self._largest_of_batches, record, message)
            before = before_of_batches if held is Held.AMONG_BATCHES else before
        if held is Held.NOT or before is None or message.order_key > before:
            return None
        partition = f"{record.topic}/{record.partition}"
        return Finding(Fault.OUT_OF_ORDER, record.id, f"{message.order_key} came after {before} in {partition}")


def _grow(largest: dict[tuple[str, int], OrderKey], record: Received, message: Published) -> OrderKey | None:
    """Return the largest order key in the record's partition before it, and take in the message's own."""
    output = record.topic, record.partition
    before = largest.get(output)
    largest[output] = message.order_key if before is None else max(before, message.order_key)
    return before
