"""The dashboard and the alerts stand on names and labels that are exported, and their queries are PromQL."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml

from adjourn.metrics import METRICS, Metrics
from observe.observe_kit import EVENTS, eventful, pay_app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = sorted((DEPLOY / "prometheus").glob("*.rules.yml"))
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
LABELS = {
    metric.prometheus + suffix: {*metric.labels, *(("le",) if suffix == "_bucket" else ())}
    for metric in METRICS
    for suffix in SUFFIXES[metric.kind]
}


class Query(NamedTuple):
    where: str
    text: str


def _queries() -> Iterator[Query]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield Query(rule.get("alert") or rule["record"], rule["expr"])
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                text = re.sub(r"\$__\w+", "5m", target["expr"]).replace("$agent", ".*")
                yield Query(f"{panel['title']} {target['refId']}", text)


QUERIES = list(_queries())


def _within(expr: Any) -> Iterator[Any]:
    """Every expression in an expression."""
    yield expr
    inner = [getattr(expr, name, None) for name in ("lhs", "rhs", "expr", "param", "vector_selector")]
    for part in [*inner, *(getattr(expr, "args", None) or ())]:
        if part is not None:
            yield from _within(part)


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.where)
def test_a_query_uses_exported_names_and_labels_only(query: Query) -> None:
    used: set[str] = set()
    expr = promql_parser.parse(query.text)
    for part in _within(expr):
        if isinstance(part, promql_parser.VectorSelector):
            assert part.name in LABELS, f"{part.name} is not exported"
            used |= LABELS[part.name]
            for matcher in part.matchers.matchers:
                assert matcher.name in LABELS[part.name], f"{part.name} has no label {matcher.name!r}"
    assert used or "adjourn" in query.text
    for part in _within(expr):
        grouped = getattr(part, "modifier", None)
        for label in getattr(grouped, "labels", None) or ():
            assert label in used, f"{label!r} is a label of nothing in this query"


def test_the_parser_would_tell_a_query_that_is_none() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (agent (adjourn_turns_total)")


def test_every_metric_is_on_the_dashboard() -> None:
    text = "".join([q.text for q in QUERIES])
    assert [m.prometheus for m in METRICS if m.prometheus not in text] == []


def test_the_documentation_lists_every_metric_with_its_labels() -> None:
    page = (DEPLOY.parent / "docs" / "observability.md").read_text()
    rows = {m[1]: m[2] for m in re.finditer(r"^\| `(adjourn_\w+)` \|[^|]*\|([^|]*)\|", page, re.MULTILINE)}
    assert rows == {
        m.prometheus + ("_total" if m.kind == "counter" else ""): "".join([f" `{label}`" for label in m.labels]) + " "
        for m in METRICS
    }


def test_there_are_alerts_and_panels_and_each_says_what_it_means() -> None:
    alerts = [r for p in RULES for g in yaml.safe_load(p.read_text())["groups"] for r in g["rules"]]
    assert len(alerts) >= 8
    for alert in alerts:
        assert set(alert["annotations"]) == {"summary", "description"}
        assert alert["labels"]["severity"] in ("warning", "critical")
    [dashboard] = [json.loads(p.read_text()) for p in DASHBOARDS]
    panels = [p for p in dashboard["panels"] if p["type"] != "row"]
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(p["targets"] and p["title"] for p in panels)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)


def test_the_labels_in_an_alerts_text_are_those_that_it_has() -> None:
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
                by = set(re.findall(r"sum by \(([^)]*)\)", rule["expr"]))
                assert all(label in group_ for label in named for group_ in by), rule["alert"]
                assert by or not named, rule["alert"]


def test_the_exported_text_is_without_fault_to_prometheus_own_linter() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    metrics = Metrics()
    ai, agent = pay_app([metrics], EVENTS)
    metrics.follow(ai)
    asyncio.run(eventful(ai, agent))
    done = subprocess.run([promtool, "check", "metrics"], input=metrics.render(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_alerts_fire_when_they_should_and_not_otherwise() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    for command in (
        ["check", "rules", *map(str, RULES)],
        ["test", "rules", str(DEPLOY / "prometheus/adjourn.test.yml")],
    ):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
