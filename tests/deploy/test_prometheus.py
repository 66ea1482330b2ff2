"""A real Prometheus takes the alerts, fires them in the states that they are for, and answers every query of the dashboard."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from nri_plugin.agent.observing.metrics import Metrics
from tests.agent_fakes import Bench
from tests.builders import node

HERE = Path(__file__).parent
FILES = HERE.parents[1] / "deploy" / "chart" / "files"
pytestmark = pytest.mark.skipif(
    not shutil.which("promtool") or not shutil.which("prometheus"),
    reason="needs Prometheus: apt-get install prometheus",
)


RULES = {
    rule["alert"]: rule for rule in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"][0]["rules"]
}
PLAIN = re.compile(r"(?:increase\()?(\w+)(?:\[\w+\]\))? (>|==) 0")
"""An alert on one metric that is or is not 0."""

WRITTEN = yaml.safe_load((HERE / "alerts_test.yaml").read_text())


def plain_tests() -> list[dict[str, Any]]:
    """A test of each alert on one metric: it changes after five minutes, and fires when the time of the rule is over."""
    tests = []
    for name, rule in RULES.items():
        plain = PLAIN.fullmatch(rule["expr"])
        if plain is None:
            continue
        series = f'{plain[1]}{{job="nri-pin", instance="10.0.0.1:9465", node="n1"}}'
        pause = int(rule.get("for", "0m").removesuffix("m"))
        firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": [{"series": series, "values": "0x5 1x60" if plain[2] == ">" else "1x5 0x60"}],
                "promql_expr_test": [
                    {"expr": firing, "eval_time": f"{5 + pause}m", "exp_samples": []},
                    {
                        "expr": firing,
                        "eval_time": f"{10 + pause}m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        )
    return tests


def test_alerts_fire_in_the_states_they_are_for_and_not_before(tmp_path: Path) -> None:
    made = WRITTEN | {
        "rule_files": [str(FILES / "alerts.yaml")],
        "tests": [*WRITTEN["tests"], *plain_tests()],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(made))
    for words in (["check", "rules", str(FILES / "alerts.yaml")], ["test", "rules", "tests.yaml"]):
        done = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    tests = [*WRITTEN["tests"], *plain_tests()]
    assert sorted(one["name"] for one in tests) == sorted(RULES)
    for one in tests:
        expected = [len(each["exp_samples"]) for each in one["promql_expr_test"]]
        assert expected == [0, 1], one["name"]
        assert all(f'"{one["name"]}"' in each["expr"] for each in one["promql_expr_test"])


@contextmanager
def page_of(metrics: Metrics) -> Iterator[int]:
    """Serve the metrics of an agent; yields the port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(generate_latest(metrics.registry))

        def log_message(self, *_words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """Run Prometheus with the alerts; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scrape = {
        "job_name": "nri-pin",
        "static_configs": [{"targets": [f"127.0.0.1:{target}"], "labels": {"node": "n1"}}],
    }
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                "scrape_configs": [scrape],
                "rule_files": [str(FILES / "alerts.yaml")],
            }
        )
    )
    address = f"127.0.0.1:{port}"
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()
        log.close()


def ask(address: str, path: str, **words: str) -> Any:
    """The data of an answer; None while there is no server yet."""
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(words)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{words}: {error.read().decode()}") from None
    except OSError:
        return None


def queries() -> list[str]:
    """The dashboard's, with its variables filled in."""
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [one.replace("$node", ".*").replace("$__rate_interval", "1m") for one in found]


@pytest.mark.timeout(300)
def test_every_query_of_the_dashboard_is_answered_with_data(tmp_path: Path) -> None:
    metrics = Metrics()
    bench = Bench(node())
    metrics.follow_state(bench.handler, SimpleNamespace(is_synchronized=True, lost=0))  # type: ignore[arg-type]
    with page_of(metrics) as target, prometheus(tmp_path, target) as address:
        left = queries()
        assert len(left) > 15
        # Prometheus needs two scrapes before it has a rate; how long that takes is the machine's affair.
        while left:
            left = [one for one in left if not (ask(address, "query", query=one) or {}).get("result")]
            time.sleep(0.2)
        rules = ask(address, "rules")["groups"][0]["rules"]
        assert {one["health"] for one in rules} <= {"ok", "unknown"}
