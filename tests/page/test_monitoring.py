"""The alert rules and the dashboard ask for metrics that there are; promtool judges the rules where it is installed."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from agent.health.snapshot import NodeSnapshot
from tests.health.test_metrics_page import PAGE, names

FOLDER = PAGE.parents[1] / "operate/monitoring"
NAME = re.compile(r"\bbsfg_[a-z_]+")


def test_every_metric_asked_for_is_exported(healthy: NodeSnapshot) -> None:
    """A renamed metric is noticed here, and not by an alert that never comes."""
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    panels = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))["panels"]
    asked = [rule["expr"] for rule in rules] + [panel["targets"][0]["expr"] for panel in panels]
    assert all(NAME.search(expression) for expression in asked)
    assert {name for expression in asked for name in NAME.findall(expression)} <= names(healthy)
    assert all(rule["annotations"].keys() == {"summary", "action"} for rule in rules)


@pytest.mark.system
def test_promtool_accepts_the_rules() -> None:
    """The rules have Prometheus' grammar."""
    if (tool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run(
        [tool, "check", "rules", str(FOLDER / "alerts.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
