"""The alert rules and the dashboard in `conf/monitoring`: their metrics and labels exist, and so do their runbooks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from benchmarks.plain import RATES
from conf.rejected import Rejected
from sinks.internal_topics.position import Position
from sinks.release.counts import BOUNDS_MS, ReleaseCounts
from sinks.release.shard import Backlog
from state.buckets.segments import Segment
from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import DueRun
from streaming.forward.counts import ForwardCounts
from streaming.monitor.estimate import MutableDues
from streaming.monitor.forward_metrics import ForwardMetrics
from streaming.monitor.held_input import HeldInput, PartitionEnd
from streaming.monitor.job_metrics import JobCounts, JobMetrics
from streaming.monitor.release_metrics import ReleaseMetrics
from streaming.monitor.server import registry_of
from streaming.monitor.table_state import StepFailures, TableState
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.streaming.monitor.groups import group

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "conf/monitoring"
# In PromQL, a metric's selector or name, and the labels to group by.
_METRIC = re.compile(r"delayline_\w+")
_LABELS = re.compile(r"by \(([^)]*)\)")
# Prometheus adds these labels to scraped metrics. They tell applications apart.
_SCRAPED = {"job", "namespace"}


def rules() -> list[dict[str, Any]]:
    (group,) = YAML(typ="safe").load((MONITORING / "prometheus-rules.yaml").read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    return dict(json.loads((MONITORING / "grafana-dashboard.json").read_text()))


def panels() -> list[dict[str, Any]]:
    return list(dashboard()["panels"])


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def metrics_of(process: SimpleNamespace) -> ReleaseMetrics:
    return ReleaseMetrics(cast(Any, process), transaction_timeout_ms=60_000)


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each sample that a job, a release process and a forwarder answer, once they have done something."""
    counts = JobCounts()
    bounds = {0: MutableDues([DueRun(1, 1, 1)], bytes=1)}
    counts.batch_done(PlannedBatch(0, 0, 0, {}), {"in": 1}, {"in": 1}, sealed=1, cancelled=0, mutable=bounds)
    counts.reported(0, mutable_buckets=1, lag={"in": 7})
    counts.lease_confirmed(1.0)
    counts.lanes_now({0: False})
    counts.took("whole", 0.1)
    counts.table_now(
        TableState([Segment(0, 0, 0, "p", 1, 1, 1, 1)], buckets=1, size=(1, 1), failures={"merge": StepFailures(1, 4)})
    )
    released = ReleaseCounts()
    letter = {"offset": 1, "output_topic": "dead", "error_code": "bad-delay", "error_text": ""}
    rows: list[dict[str, Any]] = [{"offset": 0}, letter]
    released.add(messages(rows), {}, 1)
    shard = SimpleNamespace(backlog=Backlog(1, 1), position=Position(at_ms=1), releasing=True, still_s=0.0)
    process = SimpleNamespace(counts=released, shards={0: shard}, assigned={0}, group=group())
    held = HeldInput(lambda asked: {each: PartitionEnd(1, 2) for each in asked}, lambda: {"in": {"0": 1}})
    forwarded = ForwardCounts()
    forwarded.claimed(0, 1, 1)
    lane = SimpleNamespace(is_forwarding=True, is_idle=False, behind=1)
    forwarder = SimpleNamespace(counts=forwarded, lanes={0: lane}, group=SimpleNamespace(numbers={0, 1}))
    collectors = JobMetrics(counts, held), metrics_of(process), ForwardMetrics(cast(Any, forwarder))
    registries = [registry_of(collector) for collector in collectors]
    # The first scrape has the brokers asked.
    assert_eventually(lambda: any(family.samples for family in held.collect()))
    texts = [generate_latest(registry) for registry in registries]
    families = [family for text in texts for family in text_string_to_metric_families(text.decode())]
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda text: text if len(text) < 40 else "")
def test_each_expression_names_metrics_and_labels_that_exist(
    labels: dict[str, set[str]], where: str, expression: str
) -> None:
    names = _METRIC.findall(expression)
    assert names
    assert set(names) <= labels.keys(), where
    has = set.union(*(labels[name] for name in names))
    wanted = {label.strip() for group in _LABELS.findall(expression) for label in group.split(",")}
    assert wanted - _SCRAPED <= has, where


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_tells_applications_apart_and_knows_which_are_gone(rule: dict[str, Any]) -> None:
    groups = [{label.strip() for label in group.split(",")} for group in _LABELS.findall(rule["expr"])]
    assert all(group >= _SCRAPED for group in groups)
    # An aggregation without groups is one of all applications.
    assert len(re.findall(r"\b(?:sum|max|min|avg|count)\b", rule["expr"])) == len(groups)
    # `absent` holds for all applications together, so it says nothing of one while there is another.
    assert "absent(" not in rule["expr"]
    assert groups or "absent" not in rule["expr"]


def test_each_panel_shows_the_applications_that_are_chosen_and_all_by_default(labels: dict[str, set[str]]) -> None:
    chosen = {each["name"]: each for each in dashboard()["templating"]["list"] if each["type"] == "query"}
    assert chosen.keys() == _SCRAPED
    for variable in chosen.values():
        assert set(_METRIC.findall(variable["definition"])) <= labels.keys()
        assert variable["query"]["query"] == variable["definition"]
        # `.*` also matches series without the label.
        assert (variable["includeAll"], variable["allValue"], variable["current"]["value"]) == (True, ".*", ["$__all"])
    for panel in panels():
        for target in panel["targets"]:
            selectors = re.findall(r"delayline_\w+({[^}]*})?", target["expr"])
            assert set(selectors) == {'{job=~"$job", namespace=~"$namespace"}'}, panel["title"]


def test_messages_are_late_above_a_bound_of_the_histogram_that_plain_messages_keep() -> None:
    (expression,) = (rule["expr"] for rule in rules() if rule["alert"] == "DelaylineLate")
    threshold_ms = float(expression.rpartition("> ")[2]) * 1000
    assert threshold_ms in BOUNDS_MS
    # Within a bound Prometheus may take a message for as late as the bound.
    figures = json.loads((ROOT / "benchmarks/results/plain.json").read_text())["figures"]
    measured_ms = max(figures[case]["p99_ms"] for case in RATES)
    assert threshold_ms > min(bound_ms for bound_ms in BOUNDS_MS if bound_ms >= measured_ms)


def test_alerts_fire_for_the_application_that_is_gone_and_for_no_other() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool of Prometheus is not installed")
    done = subprocess.run(
        [promtool, "test", "rules", str(Path(__file__).with_name("alerts.yaml"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_expected_summaries_of_alerts_are_those_of_the_rules() -> None:
    """promtool compares them too, but not every machine has it."""
    written = {rule["alert"]: rule["annotations"]["summary"] for rule in rules()}
    cases = YAML(typ="safe").load(Path(__file__).with_name("alerts.yaml"))["tests"]
    expected = [
        (test["alertname"], alert["exp_annotations"]["summary"])
        for case in cases
        for test in case["alert_rule_test"]
        for alert in test["exp_alerts"]
    ]
    assert len(expected) > 10
    for name, summary in expected:
        pattern = ".+".join(map(re.escape, re.split(r"{{.*?}}", written[name])))
        assert re.fullmatch(pattern, summary), (name, summary, written[name])


def test_a_shard_that_stands_still_is_told_from_one_that_has_nothing_to_release() -> None:
    nothing = {"backlog": Backlog(0, None), "position": None}
    shards = {
        0: SimpleNamespace(**nothing, releasing=True, still_s=100.0),
        1: SimpleNamespace(**nothing, releasing=False, still_s=0.0),
        # Its thread hangs in the middle of a step.
        3: SimpleNamespace(**nothing, releasing=True, still_s=300.0),
    }
    process = SimpleNamespace(
        counts=ReleaseCounts(), shards=shards, assigned={0, 1, 2, 3}, group=group(strangers={"a tool": [4]})
    )
    text = generate_latest(registry_of(metrics_of(process))).decode()
    (family,) = (each for each in text_string_to_metric_families(text) if each.name == "delayline_shard_releasing")
    assert {sample.labels["shard"]: sample.value for sample in family.samples} == dict(
        zip("01234", (1, 0, 0, 0, 0), strict=True)
    )


@pytest.mark.parametrize(
    "rule", [rule for rule in rules() if "increase(" in rule["expr"]], ids=lambda rule: rule["alert"]
)
def test_a_rule_takes_the_increase_only_of_series_that_are_there_before_anything_is_counted(
    rule: dict[str, Any],
) -> None:
    process = SimpleNamespace(counts=ReleaseCounts(), shards={}, assigned=set(), group=group())
    text = generate_latest(registry_of(metrics_of(process))).decode()
    begun = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert set(_METRIC.findall(rule["expr"])) <= begun


def test_the_first_dead_letter_of_each_reason_is_an_increase() -> None:
    process = SimpleNamespace(counts=ReleaseCounts(), shards={}, assigned=set(), group=group())

    def dead_letters() -> dict[str, float]:
        text = generate_latest(registry_of(metrics_of(process))).decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = families["delayline_dead_letters"].samples
        return {sample.labels["reason"]: sample.value for sample in samples if sample.name.endswith("_total")}

    before = dead_letters()
    assert before.keys() == {error.code for error in Rejected.__subclasses__()}
    assert set(before.values()) == {0}
    process.counts.add(messages([{"output_topic": "dead", "error_code": "expired", "error_text": ""}]), {}, 1)
    assert dead_letters() == before | {"expired": 1}


def test_each_metric_is_in_the_reference(labels: dict[str, set[str]]) -> None:
    documented = set(_METRIC.findall((ROOT / "docs/reference/metrics.md").read_text()))
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in labels}
    assert families == documented


def test_each_metric_is_on_a_panel_or_in_a_rule_but_for_details(labels: dict[str, set[str]]) -> None:
    shown = {name for _, expression in expressions() for name in _METRIC.findall(expression)}
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in shown}
    details = {"sealed_segments", "table_files", "merging_seconds_total", "last_due_timestamp_seconds"}
    details |= {"maintenance_failures_total", "lane_last_claim_timestamp_seconds"}
    known = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in labels}
    assert known - families == {f"delayline_{name}" for name in details}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_has_a_runbook_with_its_name_as_the_title(rule: dict[str, Any]) -> None:
    base, _, page = rule["annotations"]["runbook_url"].partition("/docs/operate/runbooks/")
    # The head of the file says how to set it.
    assert base == "https://delayline.example"
    title = (ROOT / "docs/operate/runbooks" / page).read_text().partition("\n")[0].removeprefix("# ")
    assert rule["alert"] in title.split(", ")


def test_the_index_of_runbooks_lists_each_alert_with_its_page() -> None:
    index = (ROOT / "docs/operate/runbooks/README.md").read_text()
    listed = re.findall(r"^- \[(Delayline\w+)\]\((Delayline\w+\.md)\)$", index, re.MULTILINE)
    assert sorted(listed) == sorted(
        (rule["alert"], rule["annotations"]["runbook_url"].rpartition("/")[2]) for rule in rules()
    )
