"""The checks of requests: each request has one answer, and the answers agree with the messages that came out.

An answer that leaves something open, or says `too-late`, must also agree with the known facts about the message:
`reasons`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from streaming.judge.reasons import Circumstances, Claim, claim_problems
from streaming.judge.record import Received

_RESULTS = {"cancelled", "due-now", "too-late", "unknown"}
_COMES_OUT = {"due-now", "too-late"}
# Among this many `too-late` answers, some say where the message went, however often release processes restart: each
# process knows it for the messages that it has released last. A few requests may all have come after a restart.
_LEAST_LATE = 1_000


@dataclass(frozen=True)
class Answers:
    """The records of a results topic, by the id of the request that each answers."""

    by_ask: Mapping[str, list[Received]]

    @staticmethod
    def of(records: Iterable[Received]) -> Answers:
        """Take the records that were read from a results topic."""
        by_ask: dict[str, list[Received]] = {}
        for record in records:
            by_ask.setdefault(record.id, []).append(record)
        return Answers(by_ask)

    def results(self, asks: Mapping[str, str]) -> dict[str, set[str]]:
        """Return the results for each id that was asked for. `asks` has these ids by the id of the request."""
        results: dict[str, set[str]] = {}
        for ask, records in self.by_ask.items():
            if ask in asks:
                results.setdefault(asks[ask], set()).update(str(_content(record).get("result")) for record in records)
        return results

    def cancelled(self, asks: Mapping[str, str]) -> set[str]:
        """Return the ids of the messages that were answered to be cancelled."""
        return {asked for asked, results in self.results(asks).items() if "cancelled" in results}

    def refused(self) -> set[str]:
        """Return the ids of the replacements that were answered not to be accepted."""
        return {
            ask
            for ask, records in self.by_ask.items()
            if any(_content(each).get("accepted") is False for each in records)
        }

    def problems(
        self,
        asks: Mapping[str, str],
        came_out: Collection[str],
        complete: bool,
        circumstances: Circumstances,
        conditions: Mapping[str, str] = MappingProxyType({}),
        delivering: Collection[str] = frozenset(),
    ) -> list[str]:
        """Return what is wrong, a sentence each.

        `came_out` are the ids of all records in output and dead-letter topics. `circumstances` may explain an answer
        other than `cancelled`. `conditions` has the condition of each request that is a replacement: "waiting" or
        "always". `delivering` are the requests that make their message due at once.

        If not `complete`, answers and messages may still come.
        """
        problems = [f"{ask} has {len(records)} answers" for ask, records in self.by_ask.items() if len(records) != 1]
        problems += [f"{ask} was answered, and asked for nothing" for ask in self.by_ask.keys() - asks.keys()]
        if complete:
            problems += [
                f"{ask}, which asks for {asks[ask]}, has no answer" for ask in asks.keys() - self.by_ask.keys()
            ]
        for ask in asks.keys() & self.by_ask.keys():
            record = self.by_ask[ask][0]
            content = _content(record)
            if record.key != asks[ask].encode() or content.get("id") != asks[ask]:
                problems.append(f"{ask} asks for {asks[ask]}, and its answer is of {record.key!r}, {content.get('id')}")
            if content.get("result") not in _RESULTS:
                problems.append(f"{ask} has the answer {content}")
        problems += self._of_replacements(asks, came_out, conditions)
        problems += claim_problems(self._claims(asks, conditions, delivering), circumstances)
        if complete:
            problems += [
                f"{asked} is cancelled, and nothing has cancelled it: everything that replaces it was refused"
                for asked in sorted(self._lost(asks, conditions, delivering))
            ]
        for asked, results in self.results(asks).items():
            if "cancelled" in results and results & _COMES_OUT:
                problems.append(f"{asked} is cancelled by one answer, and {min(results & _COMES_OUT)} by another")
            if "cancelled" in results and asked in came_out:
                problems.append(f"{asked} came out, and was answered to be cancelled")
            if complete and results & _COMES_OUT and asked not in came_out:
                problems.append(f"{asked} did not come out, and was answered to be {min(results & _COMES_OUT)}")
        return problems

    def made_due_ms(self) -> dict[str, int]:
        """Return the messages that were answered to be due at once, and when first (epoch ms)."""
        answers = [record for records in self.by_ask.values() for record in records]
        latest_first = sorted(answers, key=lambda record: record.received_ms, reverse=True)
        contents = ((_content(record), record.received_ms) for record in latest_first)
        return {str(content.get("id")): at_ms for content, at_ms in contents if content.get("result") == "due-now"}

    def places(self) -> dict[str, Any]:
        """Return what the answers say of where messages went, by the id of the message: nothing of most."""
        return {str(content.get("id")): content["output"] for content in self._contents() if "output" in content}

    def misplaced(self, delivered: Iterable[Received]) -> list[str]:
        """Return what is wrong with what the answers say of where messages went, a sentence each.

        `delivered` are the records of output and dead-letter topics.
        """
        told = self.places()
        late = sum(content.get("result") == "too-late" for content in self._contents())
        if late >= _LEAST_LATE and not told:
            return [f"of {late} answers that it is too late, none says where the message went"]
        return [
            f"{record.id} is at {record.topic}/{record.partition}/{record.offset}, and said to be at {told[record.id]}"
            for record in delivered
            if record.id in told and not _is_at(record, told[record.id])
        ]

    def _contents(self) -> Iterator[dict[str, Any]]:
        return (_content(record) for records in self.by_ask.values() for record in records)

    def _claims(
        self, asks: Mapping[str, str], conditions: Mapping[str, str], delivering: Collection[str]
    ) -> Iterator[Claim]:
        # Also what an answer to come may say.
        made_due = self.made_due_ms().keys() | {asks[ask] for ask in delivering if ask not in self.by_ask}
        for ask in sorted(asks.keys() & self.by_ask.keys()):
            record = self.by_ask[ask][0]
            content = _content(record)
            result, reason, accepted = str(content.get("result")), content.get("reason"), content.get("accepted")
            yield Claim(
                ask, asks[ask], result, reason, conditions.get(ask), accepted, record.received_ms,
                delivers=ask in delivering, is_made_due=asks[ask] in made_due,
            )  # fmt: skip

    def _lost(self, asks: Mapping[str, str], conditions: Mapping[str, str], delivering: Collection[str]) -> set[str]:
        """Return the messages that were answered to be cancelled, and that nobody can have cancelled.

        Only refused replacements, and requests `delivering` them at once, ask for these. Leaves out messages that were
        refused themselves. Also leaves out messages that a replacement asks for, if it may have been cancelled in its
        turn: after a rebuild, such a replacement may be answered not to be accepted.
        """
        refused, asked_for = self.refused(), set(asks.values())
        cannot_cancel = {*delivering, *(conditions.keys() & refused - asked_for)}
        others = {asked for ask, asked in asks.items() if ask not in cannot_cancel}
        return self.cancelled(asks) - others - refused

    def _of_replacements(
        self, asks: Mapping[str, str], came_out: Collection[str], conditions: Mapping[str, str]
    ) -> Iterator[str]:
        replaced_by: dict[str, str] = {}
        for ask in asks.keys() & self.by_ask.keys():
            content = _content(self.by_ask[ask][0])
            accepted, condition = content.get("accepted"), conditions.get(ask)
            if condition is None:
                if accepted is not None:
                    yield f"{ask} replaces nothing, and was answered {content}"
                continue
            if content.get("replacement") != ask or accepted not in (True, False):
                yield f"{ask} is a replacement, and was answered {content}"
            elif not accepted:
                if ask in came_out:
                    yield f"{ask} came out, and was answered not to be accepted"
                if condition == "always":
                    yield f"{ask} is always to be accepted, and was answered {content}"
            elif condition == "waiting":
                if content.get("result") != "cancelled":
                    yield f"{ask} was accepted, but the message that it replaces was not cancelled: {content}"
                if asks[ask] in replaced_by:
                    yield f"{asks[ask]} was replaced by {replaced_by[asks[ask]]}, and by {ask}"
                replaced_by[asks[ask]] = ask


def _is_at(record: Received, output: Any) -> bool:
    if not isinstance(output, dict) or output.get("topic") != record.topic:
        return False
    first, last = output.get("offsets", (record.offset, record.offset))
    return bool(output.get("partition", record.partition) == record.partition and first <= record.offset <= last)


def _content(record: Received) -> dict[str, Any]:
    try:
        content = json.loads(record.value or b"")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
