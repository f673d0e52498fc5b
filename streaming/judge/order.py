"""The order in an output partition: by due time, then input topic, partition and offset."""

from __future__ import annotations

from streaming.judge.contract import Fault, Finding
from streaming.judge.record import Place, Published, Received


class OrderCheck:
    """Takes the records of each output partition in the order of their offsets."""

    def __init__(self) -> None:
        # The furthest place that has come in each output partition.
        self._furthest: dict[tuple[str, int], Place] = {}

    def take(self, record: Received, message: Published, held: bool) -> Finding | None:
        """Say if the message comes after one that belongs behind it, though it is `held` to order.

        One that is not held may come late, but still before what belongs behind it and has not come yet.
        """
        output, place = (record.topic, record.partition), message.place
        furthest = self._furthest.get(output)
        if furthest is None or place > furthest:
            self._furthest[output] = place
            return None
        if not held:
            return None
        where = f"{record.topic}/{record.partition}"
        return Finding(Fault.OUT_OF_ORDER, record.id, f"{place} came after {furthest} in {where}")
