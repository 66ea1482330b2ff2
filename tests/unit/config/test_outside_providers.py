"""A hint provider of another package, from its entry point to a refusal."""

import sys
import tomllib
from pathlib import Path

import pytest

from nri_plugin.config.loading import load_hint_providers
from nri_plugin.core.engine import decide
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import CreateContainer, Synchronize
from tests import guides
from tests.builders import container, cpus, node, nodes, pod

LICENCES = """\
from nri_plugin.policy.hints import Hint, HintSet

def licences(question):
    if question.pod.namespace != "licensed":
        return None
    return (HintSet("our.site/licence", (Hint(0b10, True),), why="licence: the dongle is on NUMA node 1"),)

def broken(question):
    raise KeyError("no table")

def careless(question):
    return ["NUMA node 1"]

nothing = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package whose entry points are given by name."""

    def install(**points: str) -> None:
        info = tmp_path / "our_site-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-site\nVersion: 1\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[nri_pin.hint_providers]", *lines, ""]))
        (tmp_path / "our_site_placement.py").write_text(LICENCES)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    sys.modules.pop("our_site_placement", None)


def create(providers, *, policy=TopologyManagerPolicy.SINGLE_NUMA_NODE, cpu=2.0, namespace="licensed"):
    on = node(topology_manager_policy=policy)
    on = type(on)(on.topology, on.options, on.reserved, providers)
    of = pod(namespace=namespace)
    return decide(on, State(), CreateContainer(of, container(of, cpu=cpu)))


def test_without_other_packages_there_are_none():
    assert load_hint_providers() == ()


def test_a_package_that_cannot_be_read_hinders_no_other_one(install, tmp_path: Path):
    (tmp_path / "another-1.dist-info" / "entry_points.txt").mkdir(parents=True)
    assert load_hint_providers() == ()
    install(licences="our_site_placement:licences")
    assert len(load_hint_providers()) == 1


def test_its_wish_is_merged_with_ours_and_the_merged_hint_is_kept(install):
    install(licences="our_site_placement:licences")
    decision = create(load_hint_providers())
    (allocation,) = decision.state.allocations.values()
    assert (allocation.cpus, allocation.affinity, allocation.preferred) == (cpus("8-9"), nodes(1), True)
    assert create(load_hint_providers(), namespace="other").state.exclusive == cpus("2-3")


def test_it_has_a_say_about_shared_containers_too(install):
    install(licences="our_site_placement:licences", more="our_site_placement:licences")
    assert create(load_hint_providers(), cpu=0.5).refusal is None


def test_the_merged_hint_of_a_shared_container_can_be_asked_later(install):
    """Nothing is promised to it, so it stands with the container: kept over a restart, and when it is started again."""
    install(licences="our_site_placement:licences")
    on = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    on = type(on)(on.topology, on.options, on.reserved, load_hint_providers())
    of = pod(namespace="licensed")
    shared, again = container(of, cpu=0.5), container(of, cpu=0.5, number=1)
    state = decide(on, State(), CreateContainer(of, shared)).state
    state = decide(on, state, Synchronize((of,), (shared,))).state
    state = decide(on, state, CreateContainer(of, again)).state
    hints = {(record.affinity, record.affinity_preferred) for record in state.containers.values()}
    assert hints == {(nodes(1), True)}
    other = decide(on, State(), CreateContainer(pod(), container(pod(), cpu=0.5))).state
    assert [record.affinity for record in other.containers.values()] == [nodes()]


def test_where_nobody_is_asked_there_is_no_hint_to_remember():
    (record,) = create((), cpu=0.5).state.containers.values()
    assert record.affinity is None


def test_a_container_found_running_is_asked_about_too(install):
    install(licences="our_site_placement:licences")
    on = node(topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT)
    on = type(on)(on.topology, on.options, on.reserved, load_hint_providers())
    of = pod(namespace="licensed")
    born_unseen = container(of, cpu=2.0)
    (allocation,) = decide(on, State(), Synchronize((of,), (born_unseen,))).state.allocations.values()
    assert allocation.affinity == nodes(1)


def test_what_contradicts_it_is_refused_with_its_reason(install):
    install(licences="our_site_placement:licences")
    (licences,) = load_hint_providers()

    def contrary(question):
        (hint_set,) = licences(question)
        return (
            type(hint_set)(
                "our.site/other", (type(hint_set.hints[0])(0b1, preferred=True),), why="other: on 0"
            ),
        )

    refusal = create((licences, contrary), cpu=0.5).refusal
    assert refusal is not None
    assert refusal.reason == "TopologyAffinityError"
    assert "licence: the dongle is on NUMA node 1; other: on 0" in str(refusal)


def test_one_that_fails_refuses_the_container_and_never_ends_the_agent(install):
    install(broken="our_site_placement:broken")
    assert "hint provider broken failed: KeyError: 'no table'" in str(create(load_hint_providers()).refusal)


def test_one_that_answers_with_something_else_refuses_the_container(install):
    install(careless="our_site_placement:careless")
    assert "hint provider careless answered with list" in str(create(load_hint_providers()).refusal)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("our_site_placement:missing", "entry point bad of nri_pin.hint_providers: .* cannot be loaded"),
        ("our_site_nowhere:missing", "cannot be loaded: No module named 'our_site_nowhere'"),
        ("our_site_placement:nothing", "is no function"),
    ],
)
def test_one_that_cannot_be_asked_stops_the_start(install, value, error):
    install(bad=value)
    with pytest.raises(ConfigError, match=error):
        load_hint_providers()


def test_the_documented_example_is_found_and_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installed as the guide has it, its code and its entry point word for word."""
    text = guides.section(guides.GUIDE / "configure.md", "Your own hint providers")
    (code,) = guides.blocks(text, "python")
    project = tomllib.loads(*guides.blocks(text, "toml"))
    (tmp_path / "our_site").mkdir()
    (tmp_path / "our_site" / "placement.py").write_text(code)
    (tmp_path / "our_site-1.dist-info").mkdir()
    (tmp_path / "our_site-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: our-site\nVersion: 1\n"
    )
    points = project["project"]["entry-points"]["nri_pin.hint_providers"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (tmp_path / "our_site-1.dist-info" / "entry_points.txt").write_text(f"[nri_pin.hint_providers]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    providers = load_hint_providers()
    (allocation,) = create(providers).state.allocations.values()
    assert (allocation.affinity, allocation.preferred) == (nodes(0), True)
    assert create(providers, namespace="other").refusal is None
    full = create(providers, cpu=7.0)  # node 0 keeps two of its eight for the system
    assert "licence: the dongle is on NUMA node 0" in str(full.refusal)
    sys.modules.pop("our_site.placement", None)
    sys.modules.pop("our_site", None)
