from __future__ import annotations

import json

from streaming.checkpoint.logs import next_cutoff, planned_entry, with_input_offsets, with_next_cutoff

ENTRY = 'v1\n{"batchWatermarkMs":10,"batchTimestampMs":20,"conf":{}}\n{"in":{"0":7}}\n{"value":3}'
# Spark's Kafka source writes a zero byte first.
FIRST = '\0v1\n{"in":{"0":7}}'


def test_the_offsets_of_an_entry_are_replaced_and_nothing_else() -> None:
    changed = with_input_offsets(ENTRY, {"in": {"0": 0, "1": 0}})
    assert planned_entry(changed, "file") == (20, 10, {"in": {"0": 0, "1": 0}})
    assert changed.splitlines()[::3] == ENTRY.splitlines()[::3]
    assert planned_entry(with_input_offsets(changed, {"in": {"0": 7}}), "file") == planned_entry(ENTRY, "file")


def test_the_first_offsets_keep_what_spark_writes_before_them() -> None:
    changed = with_input_offsets(FIRST, {"other": {"0": 4}})
    assert changed.startswith("\0v1\n{")
    assert json.loads(changed.splitlines()[1]) == {"other": {"0": 4}}


def test_the_next_cutoff_of_an_entry_is_replaced_and_nothing_else() -> None:
    entry = 'v1\n{"nextBatchWatermarkMs":10,"stateUniqueIds":{"0":[["a"]]}}'
    changed = with_next_cutoff(entry, "file", 30)
    assert next_cutoff(changed, "file") == 30
    version, facts = changed.splitlines()
    assert version == "v1"
    assert json.loads(facts) == {"nextBatchWatermarkMs": 30, "stateUniqueIds": {"0": [["a"]]}}
