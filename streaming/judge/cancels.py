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

    by_request: Mapping[str, list[Received]]

    @staticmethod
    def of(records: Iterable[Received]) -> Answers:
        """Take the records that were read from a results topic."""
        by_request: dict[str, list[Received]] = {}
        for record in records:
            by_request.setdefault(record.id, []).append(record)
        return Answers(by_request)

    def results(self, requests: Mapping[str, str]) -> dict[str, set[str]]:
        """Return the results for each id that was asked for. `requests` has these ids by the id of the request."""
        results: dict[str, set[str]] = {}
        for request, records in self.by_request.items():
            if request in requests:
                results.setdefault(requests[request], set()).update(
                    str(_content(record).get("result")) for record in records
                )
        return results

    def cancelled(self, requests: Mapping[str, str]) -> set[str]:
        """Return the ids of the messages that were answered to be cancelled."""
        return {asked for asked, results in self.results(requests).items() if "cancelled" in results}

    def refused(self) -> set[str]:
        """Return the ids of the replacements that were answered not to be accepted."""
        return {
            request
            for request, records in self.by_request.items()
            if any(_content(each).get("accepted") is False for each in records)
        }

    def problems(
        self,
        requests: Mapping[str, str],
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
        problems = [
            f"{request} has {len(records)} answers" for request, records in self.by_request.items() if len(records) != 1
        ]
        problems += [
            f"{request} was answered, and asked for nothing" for request in self.by_request.keys() - requests.keys()
        ]
        if complete:
            problems += [
                f"{request}, which asks for {requests[request]}, has no answer"
                for request in requests.keys() - self.by_request.keys()
            ]
        for request in requests.keys() & self.by_request.keys():
            record = self.by_request[request][0]
            content = _content(record)
            if record.key != requests[request].encode() or content.get("id") != requests[request]:
                problems.append(
                    f"{request} asks for {requests[request]}, and its answer is of {record.key!r}, {content.get('id')}"
                )
            if content.get("result") not in _RESULTS:
                problems.append(f"{request} has the answer {content}")
        problems += self._of_replacements(requests, came_out, conditions)
        problems += claim_problems(self._claims(requests, conditions, delivering), circumstances)
        if complete:
            problems += [
                f"{asked} is cancelled, and nothing has cancelled it: everything that replaces it was refused"
                for asked in sorted(self._lost(requests, conditions, delivering))
            ]
        for asked, results in self.results(requests).items():
            if "cancelled" in results and results & _COMES_OUT:
                problems.append(f"{asked} is cancelled by one answer, and {min(results & _COMES_OUT)} by another")
            if "cancelled" in results and asked in came_out:
                problems.append(f"{asked} came out, and was answered to be cancelled")
            if complete and results & _COMES_OUT and asked not in came_out:
                problems.append(f"{asked} did not come out, and was answered to be {min(results & _COMES_OUT)}")
        return problems

    def made_due_ms(self) -> dict[str, int]:
        """Return the messages that were answered to be due at once, and when first (epoch ms)."""
        answers = [record for records in self.by_request.values() for record in records]
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
        return (_content(record) for records in self.by_request.values() for record in records)

    def _claims(
        self, requests: Mapping[str, str], conditions: Mapping[str, str], delivering: Collection[str]
    ) -> Iterator[Claim]:
        # Also what an answer to come may say.
        made_due = self.made_due_ms().keys() | {
            requests[request] for request in delivering if request not in self.by_request
        }
        for request in sorted(requests.keys() & self.by_request.keys()):
            record = self.by_request[request][0]
            content = _content(record)
            result, reason, accepted = str(content.get("result")), content.get("reason"), content.get("accepted")
            yield Claim(
                request, requests[request], result, reason, conditions.get(request), accepted, record.received_ms,
                delivers=request in delivering, is_made_due=requests[request] in made_due,
            )  # fmt: skip

    def _lost(
        self, requests: Mapping[str, str], conditions: Mapping[str, str], delivering: Collection[str]
    ) -> set[str]:
        """Return the messages that were answered to be cancelled, and that nobody can have cancelled.

        Only refused replacements, and requests `delivering` them at once, ask for these. Leaves out messages that were
        refused themselves. Also leaves out messages that a replacement asks for, if it may have been cancelled in its
        turn: after a rebuild, such a replacement may be answered not to be accepted.
        """
        refused, asked_for = self.refused(), set(requests.values())
        cannot_cancel = {*delivering, *(conditions.keys() & refused - asked_for)}
        others = {asked for request, asked in requests.items() if request not in cannot_cancel}
        return self.cancelled(requests) - others - refused

    def _of_replacements(
        self, requests: Mapping[str, str], came_out: Collection[str], conditions: Mapping[str, str]
    ) -> Iterator[str]:
        replaced_by: dict[str, str] = {}
        for request in requests.keys() & self.by_request.keys():
            content = _content(self.by_request[request][0])
            accepted, condition = content.get("accepted"), conditions.get(request)
            if condition is None:
                if accepted is not None:
                    yield f"{request} replaces nothing, and was answered {content}"
                continue
            if content.get("replacement") != request or accepted not in (True, False):
                yield f"{request} is a replacement, and was answered {content}"
            elif not accepted:
                if request in came_out:
                    yield f"{request} came out, and was answered not to be accepted"
                if condition == "always":
                    yield f"{request} is always to be accepted, and was answered {content}"
            elif condition == "waiting":
                if content.get("result") != "cancelled":
                    yield f"{request} was accepted, but the message that it replaces was not cancelled: {content}"
                if requests[request] in replaced_by:
                    yield f"{requests[request]} was replaced by {replaced_by[requests[request]]}, and by {request}"
                replaced_by[requests[request]] = request


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
