"""Checks the order in each output partition: by due time, then input topic, partition and offset."""

from __future__ import annotations

from streaming.judge.contract import Fault, Finding
from streaming.judge.record import OrderKey, Published, Received


class OrderCheck:
    """Takes the records of each output partition in the order of their offsets."""

    def __init__(self) -> None:
        # The largest order key so far in each output partition.
        self._largest: dict[tuple[str, int], OrderKey] = {}

    def take(self, record: Received, message: Published, must_be_in_order: bool) -> Finding | None:
        """Return a finding if the message must be in order, but follows a message with a larger order key.

        A message that need not be in order may come late. Its own order key still counts for the messages after it.
        """
        output, key = (record.topic, record.partition), message.order_key
        largest = self._largest.get(output)
        if largest is None or key > largest:
            self._largest[output] = key
            return None
        if not must_be_in_order:
            return None
        partition = f"{record.topic}/{record.partition}"
        return Finding(Fault.OUT_OF_ORDER, record.id, f"{key} came after {largest} in {partition}")
