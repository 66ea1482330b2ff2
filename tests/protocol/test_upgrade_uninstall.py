"""What deploy/guide/install.md says of an upgrade and of an uninstall, on the embedded runtime with the real agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nri_plugin.checkpoint.file import FILE_NAME
from nri_plugin.checkpoint.format import VERSION
from nri_plugin.model.sets import CPUSet
from tests.lab.scenario.player import Player
from tests.lab.scenario.scenario import parse
from tests.lab.scenario.stage import ScenarioNode
from tests.patient_stage import patient_stage

HEAD = """\
machine: laptop
config:
  reservedSystemCPUs: "0"
steps:
"""
DB = "  - run: shop/db\n    containers: {db: {cpu: 2, memory: 1Gi}}\n"
WEB = "  - run: shop/web\n    containers: {web: {requests: {cpu: 500m}}}\n"
BORN = "  - run: shop/born\n    containers: {c: {requests: {cpu: 100m}}}\n"
LATER = "  - run: shop/later\n    containers: {d: {requests: {cpu: 100m}}}\n"
ALL = CPUSet.parse("0-7")


@pytest.fixture
def player() -> Iterator[Player]:
    """A node on which db has CPUs of its own and web the rest."""
    with patient_stage(parse(HEAD + DB, "x")) as node:
        node.start_agent()
        player = Player(node)
        assert player.play(parse(HEAD + DB, "x").steps[0]).problems == ()
        run(player, WEB)
        yield player


def run(player: Player, steps: str) -> None:
    for step in parse(HEAD + DB + steps, "x").steps[1:]:
        assert player.play(step).problems == ()


def cpus(player: Player, key: str) -> CPUSet | None:
    return player.stage.runtime.placements()[key].effective


def configure(node: ScenarioNode, **keys: object) -> None:
    config = yaml.safe_load(node.places.config.read_text())
    node.places.config.write_text(yaml.safe_dump({**config, **keys}))


def replace_agent(node: ScenarioNode, **keys: object) -> None:
    assert node.stop_agent() == 0
    configure(node, **keys)
    node.start_agent()


def test_an_upgrade_moves_nobody_and_places_who_was_born_meanwhile(player: Player) -> None:
    node, own = player.stage, cpus(player, "shop/db/db")
    assert own is not None
    assert node.stop_agent() == 0
    run(player, BORN)
    assert cpus(player, "shop/born/c") == ALL - own
    configure(node, topologyManagerPolicy="single-numa-node", uncoreCacheFit="best")
    assert node.start_agent() == ()
    assert cpus(player, "shop/db/db") == own
    assert cpus(player, "shop/web/web") == cpus(player, "shop/born/c") == ALL - own


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_an_upgrade_from_a_release_with_another_checkpoint_moves_nobody(player: Player, version: int) -> None:
    node, own, rest = player.stage, cpus(player, "shop/db/db"), cpus(player, "shop/web/web")
    assert node.stop_agent() == 0
    path = Path(node.places.state, FILE_NAME)
    path.write_text(path.read_text().replace(f'"version":{VERSION},', f'"version":{version},', 1))
    path.with_name(f"{FILE_NAME}.previous").unlink(missing_ok=True)
    assert node.start_agent() == ()
    run(player, LATER)
    assert (cpus(player, "shop/db/db"), cpus(player, "shop/web/web"), cpus(player, "shop/later/d")) == (
        own,
        rest,
        rest,
    )
    assert path.with_name(f"{FILE_NAME}.damaged-1").exists()


def test_after_an_uninstall_containers_keep_what_they_have(player: Player) -> None:
    own, rest = cpus(player, "shop/db/db"), cpus(player, "shop/web/web")
    assert player.stage.stop_agent() == 0
    run(player, LATER)
    assert (cpus(player, "shop/db/db"), cpus(player, "shop/web/web")) == (own, rest)


def test_with_the_pool_floor_switched_off_before_it_an_uninstall_leaves_nothing_behind(
    player: Player,
) -> None:
    own = cpus(player, "shop/db/db")
    replace_agent(player.stage, poolFloor=False)
    assert cpus(player, "shop/db/db") == own
    assert player.stage.stop_agent() == 0
    run(player, "  - remove: shop/db\n" + LATER)
    assert cpus(player, "shop/later/d") == ALL
