"""What hack/cluster does without a cluster: its report, its guests' programs, the key of an image."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.e2e.cluster import image
from tests.e2e.cluster.components import check_tools
from tests.e2e.cluster.report import as_html, as_markdown
from tests.e2e.cluster.running import ALL_SCENARIOS, LEAN_SCENARIOS, Result, keep, kept
from tests.e2e.inside import api_forwarder, pod_processes
from tests.e2e.lab.shell import CannotRun

RESULT = Result(
    held=["a"], scenario="one", title="What it shows", version="1.35.3", seconds=2.0,
    refused={"patch noderesourcetopologies 409": 2}, looks=3, played="2026-11-24, abc",
)  # fmt: skip


def test_report_explains_refused_requests_and_counts_looks() -> None:
    text = as_markdown([RESULT])
    assert "| `one` | What it shows | ok 1 / 2 s |" in text
    assert "2 x patch noderesourcetopologies 409: the exporter's first apply is without force" in text
    assert "looked at 3 times, in its /proc: 0 exclusive CPU sets were shared" in text
    assert "<h2>Exclusive CPUs, judged from outside</h2>" in as_html([RESULT])


def test_report_of_played_nodes_says_nothing_of_looks() -> None:
    assert "judged from outside" not in as_markdown([Result(scenario="one", version="1.35.3")])


def test_report_says_when_and_with_which_commit_a_scenario_was_played() -> None:
    old = Result(scenario="old", version="1.35.3", played="2026-11-20, 123")
    assert as_markdown([old, RESULT]).endswith("\n* 2026-11-24, abc: one\n* 2026-11-20, 123: old\n")


def test_kept_results_come_back(tmp_path: Path) -> None:
    keep(RESULT, tmp_path)
    assert kept(tmp_path) == [RESULT]


def test_what_ci_plays_exists() -> None:
    assert set(LEAN_SCENARIOS) <= set(ALL_SCENARIOS)


def test_every_scenario_has_a_title() -> None:
    assert [name for name, play in ALL_SCENARIOS.items() if not (play.__doc__ or "").strip()] == []


def test_image_is_built_again_for_other_code_and_not_for_other_tests(
    tmp_path: Path,
) -> None:
    for name in (
        "deploy/Containerfile",
        "nri_plugin/a.py",
        "hack/requirements.lock",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    first = image.image_key(tmp_path, "agent", "1")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("1")
    assert image.image_key(tmp_path, "agent", "1") == first
    assert image.image_key(tmp_path, "cluster", "1") != first
    (tmp_path / "nri_plugin" / "a.py").write_text("2")
    assert image.image_key(tmp_path, "agent", "1") != first


UID = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("line", "uid"),
    [
        (f"0::/kubepods/burstable/pod{UID}/abc", UID),
        (
            f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-abc.scope",
            UID.replace("-", "_"),
        ),
        ("0::/system.slice/kubelet.service", None),
    ],
)
def test_process_of_a_pod_is_told_by_its_cgroup(line: str, uid: str | None) -> None:
    found = pod_processes.PLACE.search(f"{line}\n")
    assert (found[2] if found else None) == uid


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *_: object) -> None:
        pass


def test_forwarder_carries_both_directions() -> None:
    with HTTPServer(("127.0.0.1", 0), _Answering) as server, api_forwarder.listening(("127.0.0.1", 0)) as own:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        connection = http.client.HTTPConnection("127.0.0.1", own.getsockname()[1], timeout=30)
        connection.connect()
        carrying = threading.Thread(
            target=api_forwarder.join, args=(own.accept()[0], ("127.0.0.1", server.server_port))
        )
        carrying.start()
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"here"
        connection.close()
        for thread in (serving, carrying):
            thread.join()


def test_machine_without_go_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "openssl").touch(mode=0o755)
    with pytest.raises(CannotRun, match=r"Go 1\.21 or newer; install golang"):
        check_tools()
    (tmp_path / "openssl").unlink()
    with pytest.raises(CannotRun, match="install openssl"):
        check_tools()
