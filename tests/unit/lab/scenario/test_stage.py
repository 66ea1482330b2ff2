import os
import signal
from pathlib import Path

import pytest

import nri_plugin.__main__
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.simulator.simulate.pods import PodSpec
from tests.lab.runtime.plugin_link import PluginLostError
from tests.lab.scenario import stage as stage_module
from tests.lab.scenario.scenario import Scenario, load, parse
from tests.lab.scenario.stage import AgentFailedError, Places, _environment, _kept, described, stage

TEXT = """\
machine: laptop
config:
  reservedSystemCPUs: "0"
steps:
  - say: Nothing happens.
"""


def scenario(text: str = TEXT) -> Scenario:
    return parse(text, "x.yaml")


def test_a_folder_of_others_to_keep_files_in_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for call in ("mkdir", "iterdir"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, call, denied)
            with pytest.raises(ConfigError, match="permission denied; name a folder that is yours"):
                _kept(tmp_path / "x")


def test_a_folder_that_others_can_change_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(ConfigError, match="is a link, or others can change it"):
            _kept(tmp_path / name)
    assert _kept(tmp_path / "mine") == (tmp_path / "mine").resolve()
    with monkeypatch.context() as patch:
        patch.setattr(stage_module.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(ConfigError, match="others can change it"):
            _kept(tmp_path / "mine")
    if not os.geteuid():
        (tmp_path / "theirs" / "node").mkdir(parents=True)
        os.chown(tmp_path / "theirs", 4242, 4242)
        for name in ("node", "new"):
            with pytest.raises(HostError, match="because user 4242 can change"):
                _kept(tmp_path / "theirs" / name)


def test_a_machine_is_a_name_or_a_description() -> None:
    assert described("laptop").name == "laptop"
    assert described("pack:1 numa:1 l3:1 core:2 pu:1").cores
    with pytest.raises(HostError, match="neither a file nor the name"):
        described("nowhere")
    with pytest.raises(ConfigError):
        described("pack:1 wheels:2")


def test_the_agent_of_a_stage_is_that_of_this_package() -> None:
    assert (Path(_environment()["PYTHONPATH"]) / "nri_plugin" / "__main__.py").samefile(
        nri_plugin.__main__.__file__
    )


def test_a_stage_has_all_an_agent_looks_for_and_leaves_nothing() -> None:
    with stage(scenario()) as node:
        places = node.places
        assert (places.machine / "sys" / "devices" / "system" / "cpu" / "online").read_text().strip() == "0-7"
        assert (places.cgroups / "cpuset.cpus.effective").read_text() == "0-7\n"
        assert "reservedSystemCPUs" in places.config.read_text()
        assert places.socket.is_socket()
        assert node.agent_pid == 0
        assert node.agent_death is None
    assert not places.sockets.exists()
    assert not places.root.exists()


def test_a_stage_leaves_nothing_when_its_user_fails() -> None:
    opened = stage(scenario())
    places = opened.__enter__().places
    assert opened.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    assert not places.sockets.exists()


def test_kept_files_are_where_they_were_asked_for(tmp_path: Path) -> None:
    with stage(scenario(), tmp_path / "node") as node:
        assert node.places.root == tmp_path / "node"
    assert (tmp_path / "node" / "config.yaml").is_file()
    assert not node.places.sockets.exists()


def test_a_folder_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="is not empty"), stage(scenario(), tmp_path):
        pass


def test_the_agent_starts_registers_and_stops_on_sigterm() -> None:
    with stage(scenario()) as node:
        assert node.start_agent() == ()
        assert node.agent_pid > 0
        assert node.stop_agent() in (0, -signal.SIGTERM)
        assert node.agent_pid == 0
        assert "stopping" in node.last_words()


def test_a_second_agent_is_waited_for_though_the_connection_of_the_first_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stage(scenario()) as node:
        node.start_agent()
        node.kill_agent()
        node.runtime.run_pod(PodSpec("p"))
        assert node.server.link is not None
        assert node.server.link.session.lost
        wait, late = node.server.wait_for_plugin, iter([True])

        def wait_for_plugin(timeout_s: float) -> object:
            if next(late, False):
                raise PluginLostError("no plugin connected yet")
            return wait(timeout_s)

        monkeypatch.setattr(node.server, "wait_for_plugin", wait_for_plugin)
        node.start_agent()
        assert not node.server.link.session.lost


def test_killing_an_agent_that_is_not_there_is_nothing() -> None:
    with stage(scenario()) as node:
        node.kill_agent()
        assert node.stop_agent() == 0
        assert node.last_words() == ""


def test_an_agent_that_cannot_start_is_told_with_its_words() -> None:
    with stage(scenario(TEXT.replace('"0"', '"50"'))) as node:
        with pytest.raises(AgentFailedError, match=r"ended with code 2; its last words: .*CPUs 50"):
            node.start_agent()
        assert node.agent_death == 2


def test_places_lie_below_one_folder(tmp_path: Path) -> None:
    places = Places(tmp_path / "a", tmp_path)
    folders = {places.machine, places.cgroups, places.state, places.config, places.log}
    assert {path.parent for path in folders} == {tmp_path / "a"}
    assert places.socket.parent == tmp_path


def test_the_shipped_example_is_right() -> None:
    example = Path(__file__).parents[4] / "nri_plugin" / "simulator" / "scenarios" / "example.yaml"
    assert load(example).name == "example"
