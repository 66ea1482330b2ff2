"""`kubectl nri-pin` with two agents that work: kubectl is a stand-in, and runs the real `nri-pin` for each of them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin import __main__ as entry
from nri_plugin import __version__
from nri_plugin.wire.nri import events as nri
from tests.agent_process import Site
from tests.builders import container, pod
from tests.fake_kubectl import Cluster, agent_object, pod_object

POD = pod("db-0", cpu=2, namespace="shop")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[list[Site]]:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(Site(tmp_path / name))
    yield made
    for site in made:
        site.close()


def test_two_nodes_are_shown_as_their_agents_see_them(
    sites: list[Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    cluster = Cluster(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for site, name in zip(sites, ("a", "b"), strict=True):
        process = site.start()
        peer = site.accept()
        peer.synchronize()
        process.wait_for_line("ready")
        cluster.pods.append(agent_object(name))
        cluster.options[f"nri-pin-{name}"] = ["--state-dir", str(site.folder / "state")]
    sites[0].peers[0].ask(nri.CreateContainer(POD, container(POD, "db", cpu=2)))
    cluster.pods.append(pod_object("db-0", "a", containers=("db",)))
    cluster.save()

    def answer(*words: str) -> str:
        assert entry.main(words, entry.start_kubectl) == 0
        return capfd.readouterr().out

    shape = "cpu=4,memory=1Gi"
    rows = json.loads(answer("nodes", "-o", "json", "--shape", shape))["items"]
    assert [(one["node"], one["health"], one["version"]) for one in rows] == [
        ("a", "OK", __version__),
        ("b", "OK", __version__),
    ]
    assert [(one["available"], one["allocatable"]) for one in rows] == [(12, 14), (14, 14)]
    assert [one["room"] for one in rows] == [[{"shape": shape, "fits": 3}]] * 2
    assert "db-0/db" in answer("explain", "shop/db-0")
    assert "2-3" in answer("show", "db-0", "-n", "shop")
    both = answer("room", "--all-nodes", "--shape", shape)
    assert both.index("node/a\n12 of 14") < both.index("node/b\n14 of 14")
