import os
from pathlib import Path

import pytest

from nri_plugin.agent.agent import PluginIdentity, given_drop_in, given_identity, given_life, load_drop_in
from nri_plugin.agent.arguments import Arguments
from nri_plugin.agent.serving.supervisor import CONFIG, LIFE
from nri_plugin.model.errors import ConfigError
from tests.agent_fakes import recording_log


def test_the_runtimes_variables_name_a_launched_plugin():
    log, lines = recording_log()
    environment = {"NRI_PLUGIN_NAME": "pin", "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3"}
    assert given_identity(environment, log) == PluginIdentity("pin", "10", 3)
    assert lines.lines == []


def test_a_launched_plugin_of_an_impossible_name_registers_under_the_default_one():
    log, lines = recording_log()
    environment = {"NRI_PLUGIN_NAME": "we ird", "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3"}
    assert given_identity(environment, log) == PluginIdentity("nri-pin", "90", 3)
    assert len(lines.texts("WARNING")) == 1


@pytest.mark.parametrize("number", ["", "three", "-1", "3 "])
def test_a_socket_that_is_no_number_is_refused(number: str):
    with pytest.raises(ConfigError, match="NRI_PLUGIN_SOCKET: expected the number of an open socket"):
        given_identity({"NRI_PLUGIN_SOCKET": number}, recording_log()[0])


def test_one_that_came_back_has_no_socket_of_the_runtime():
    environment = {"NRI_PLUGIN_NAME": "pin", "NRI_PLUGIN_IDX": "10"}
    assert given_identity(environment, recording_log()[0]) == PluginIdentity("pin", "10", None)


def test_the_drop_in_of_the_former_agent_is_read_again():
    file = os.memfd_create("drop-in")
    os.write(file, b'reservedSystemCPUs: "0"\npluginName: x\n')
    text = given_drop_in({CONFIG: str(file)})
    assert load_drop_in(text, Arguments()).plugin_name == "x"


def test_without_a_drop_in_the_default_file_is_read(tmp_path: Path):
    (tmp_path / "config.yaml").write_text('reservedSystemCPUs: "1"\n')
    assert given_drop_in({}) == ""
    assert str(load_drop_in(" \n", Arguments(str(tmp_path / "config.yaml"))).reserved_system_cpus) == "1"


@pytest.mark.parametrize("number", [None, "", "none"])
def test_an_agent_without_a_supervisor_serves_without(number: str | None):
    assert given_life({} if number is None else {LIFE: number}) is None
