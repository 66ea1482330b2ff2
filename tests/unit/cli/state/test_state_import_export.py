"""A node changes between the kubelet's managers and nri-pin without draining."""

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.agent.serving.serving_lease import lock_state_dir
from nri_plugin.checkpoint.file import CheckpointFile, read_checkpoint
from nri_plugin.checkpoint.format import Encoder
from nri_plugin.checkpoint.kubelet_files import checksum, cpu_v1, cpu_v2, cpu_v3, load_refusal, memory_v1
from nri_plugin.cli.state import import_export
from nri_plugin.cli.state.state import command
from nri_plugin.core.requests import QOSClass
from nri_plugin.model.records import Allocation, MemoryBlock, PodRecord
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import State
from tests.agent_process import config_text, machine_root

ENTRIES = {"u1": {"db": "2-5", "init": "2-3"}, "u2": {"web": "8-11"}}
APART = {"u1": {"db": "2-5"}, "u2": {"web": "8-11"}}


class Site:
    """A machine of 16 CPUs with a configuration, a state directory and a kubelet's root directory."""

    def __init__(self, folder: Path) -> None:
        machine_root(folder)
        self.folder = folder
        self.config = folder / "config.yaml"
        self.config.write_text(config_text(folder))
        self.kubelet = folder / "kubelet"
        self.kubelet.mkdir()

    def wrote(self, entries: object, default: str, render: object = cpu_v2) -> None:
        record = {"policyName": "static", "defaultCpuSet": default, "entries": entries}
        self.write_cpu(json.dumps(record | {"checksum": checksum(render(record))}))  # type: ignore[operator]

    def write_cpu(self, text: str) -> None:
        (self.kubelet / "cpu_manager_state").write_text(text)

    def crictl(self, *containers: tuple[str, str, str]) -> str:
        path = self.folder / "running.json"
        rows = [
            {"id": number, "metadata": {"name": name}, "labels": {"io.kubernetes.pod.uid": uid}}
            for number, uid, name in containers
        ]
        path.write_text(json.dumps({"containers": rows}))
        return str(path)

    def run(self, verb: str, *words: str) -> Result:
        return CliRunner().invoke(command, [verb, str(self.kubelet), "--config", str(self.config), *words])

    def bare(self, verb: str, *words: str) -> Result:
        """Without the agent's configuration."""
        places = ["--state-dir", str(self.folder / "state"), "--root", str(self.folder / "host")]
        return CliRunner().invoke(command, [verb, str(self.kubelet), *places, *words])

    def promises(self) -> dict[str, str]:
        checkpoint = read_checkpoint(str(self.folder / "state" / "state.json"))
        return (
            {}
            if checkpoint is None
            else {key: str(one.cpus) for key, one in checkpoint.state.allocations.items()}
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_promises_of_the_kubelet_become_the_checkpoint(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    result = site.run("import")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "u1/db  CPUs 2-5",
        "u2/web  CPUs 8-11",
        f"2 allocations written to {site.folder}/state/state.json",
    ]
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-11"}


def test_an_ended_init_container_is_left_out_by_naming_those_that_run(site: Site) -> None:
    site.wrote(ENTRIES, "0-1,6-7,12-15")
    refused = site.run("import")
    assert refused.exit_code == 1
    assert "u1/db and u1/init both have CPUs 2-3: one of them has ended" in refused.output
    assert site.promises() == {}
    running = site.crictl(("a", "u1", "db"), ("b", "u2", "web"))
    assert site.run("import", "--containers", running).exit_code == 0
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-11"}


def test_the_oldest_files_need_somebody_who_knows_the_ids(site: Site) -> None:
    site.wrote({"a1": "2-5"}, "0-1,6-15", cpu_v1)
    refused = site.run("import")
    assert (refused.exit_code, "--containers FILE" in refused.output) == (1, True)
    assert site.run("import", "--containers", site.crictl(("a1", "u1", "db"))).exit_code == 0
    assert site.promises() == {"u1/db": "2-5"}


def test_an_import_that_no_agent_has_met_is_replaced(site: Site) -> None:
    site.wrote(ENTRIES | {"u1": {"db": "2-5"}}, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    site.wrote({"u3": {"new": "2-3"}}, "0-1,4-15")
    assert site.run("import").exit_code == 0
    assert site.promises() == {"u3/new": "2-3"}


def test_nothing_is_imported_over_promises_that_an_agent_made(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    meet_pods(site)
    again = site.run("import")
    assert again.exit_code == 1
    assert "already holds 2 allocations that an agent made" in again.output
    assert f"mv {site.folder}/state/state.json* {site.folder}/state/retired/" in again.output
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-11"}


def meet_pods(site: Site) -> None:
    """What an agent adds to an import once the runtime has listed its pods."""
    path = str(site.folder / "state" / "state.json")
    checkpoint = read_checkpoint(path)
    assert checkpoint is not None
    assert checkpoint.facts is not None
    file = CheckpointFile(str(site.folder / "state"), checkpoint.facts.as_node(), durable=False)
    file.generation = checkpoint.generation
    pod = PodRecord("u1", "s1", "db-0", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")
    file.save(checkpoint.state.with_pod(pod))


def test_a_node_that_has_only_the_kubelets_file_is_judged_by_that(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    monkeypatch.setattr(import_export, "DEFAULT_PATH", str(site.folder / "none.yaml"))
    missing = site.bare("import")
    assert missing.exit_code == 2
    assert "no configuration" in missing.output
    theirs = site.kubelet / "config.yaml"
    theirs.write_text(
        'kind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: "0-1"\nmaxPods: 99\n'
    )
    result = site.bare("import")
    assert result.exit_code == 0, result.output
    assert f"by the options in {theirs}" in result.output
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-11"}


def test_nothing_is_exported_for_a_kubelet_under_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    monkeypatch.setattr(import_export, "DEFAULT_PATH", str(site.folder / "none.yaml"))
    before = (site.kubelet / "cpu_manager_state").read_text()
    for policy in ("cpuManagerPolicy: none", "kubeReserved: {cpu: '1'}"):
        (site.kubelet / "config.yaml").write_text(f"kind: KubeletConfiguration\n{policy}\n")
        refused = site.bare("export", "--force")
        assert refused.exit_code == 1
        assert (
            "does not start on allocations; name the configuration that it is to start with" in refused.output
        )
        assert (site.kubelet / "cpu_manager_state").read_text() == before


def test_memory_is_never_left_out_without_a_word(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    block = {"numaAffinity": [0], "type": "memory", "size": 1 << 30}
    amounts = {
        "total": 8 << 30,
        "systemReserved": 0,
        "allocatable": 8 << 30,
        "reserved": 1 << 30,
        "free": 7 << 30,
    }
    record = {
        "policyName": "Static",
        "machineState": {"0": {"numberOfAssignments": 1, "memoryMap": {"memory": amounts}, "cells": [0]}},
        "entries": {"u1": {"db": [block]}},
    }
    text = json.dumps(record | {"checksum": checksum(memory_v1(record))})
    (site.kubelet / "memory_manager_state").write_text(text)
    refused = site.run("import")
    assert (refused.exit_code, site.promises()) == (1, {})
    assert "holds memory of 1 container, and memoryManagerPolicy is not Static" in refused.output
    assert site.run("import", "--without-memory").exit_code == 0
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-11"}


def test_an_export_needs_a_directory_that_is_there(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    shutil.rmtree(site.folder / "kubelet")
    result = site.run("export")
    assert result.exit_code == 2
    assert (
        "kubelet: there is no such directory; make it, or name the kubelet's root directory" in result.output
    )


def test_the_lines_of_a_first_configuration_stay_lines(site: Site) -> None:
    (site.folder / "config.yaml").unlink()
    assert (
        'write these lines to it:\n  cpuManagerPolicy: static\n  reservedSystemCPUs: "'
        in site.run("import").output
    )


def test_an_export_says_how_to_retire_the_checkpoint(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    meet_pods(site)
    result = site.run("export", "--force")
    (command,) = re.findall(r"is refused: (mkdir .*)", result.output)
    subprocess.run(["sh", "-c", command], check=True)
    assert site.run("import").exit_code == 0, "the kubelet's files are newer"
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-11"}


def test_nothing_is_imported_while_the_agent_runs(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    lock = lock_state_dir(str(site.folder / "state"))
    try:
        result = site.run("import")
    finally:
        os.close(lock)
    assert (result.exit_code, site.promises()) == (2, {})
    assert "another agent" in result.output


def test_what_this_configuration_cannot_keep_is_refused_with_the_reason(site: Site) -> None:
    site.wrote({"u1": {"db": "0-3"}}, "4-15")
    result = site.run("import")
    assert (result.exit_code, site.promises()) == (1, {})
    assert "nothing was changed: reserved CPU 0 is exclusive to u1/db" in result.output


def test_a_listing_that_crictl_did_not_print_is_refused(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    (site.folder / "x.json").write_text("[1]")
    result = site.run("import", "--containers", str(site.folder / "x.json"))
    assert result.exit_code == 2
    assert "is not what `crictl ps -o json` prints" in result.output
    missing = site.run("import", "--containers", str(site.folder / "y.json"))
    assert (missing.exit_code, "cannot be read" in missing.output) == (2, True)


def test_promises_go_back_to_the_kubelet(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    before = (site.kubelet / "cpu_manager_state").read_bytes()
    assert site.run("import").exit_code == 0
    refused = site.run("export")
    assert refused.exit_code == 1
    assert "--force replaces it" in refused.output
    result = site.run("export", "--force", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["allocations"][0] == {"container": "u1/db", "cpus": "2-5", "mems": ""}
    written = site.kubelet / "cpu_manager_state"
    assert written.read_bytes() == before.replace(b": ", b":").replace(b", ", b",")
    assert load_refusal(written.read_bytes(), "cpu", "static") == ""
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert (site.kubelet / "cpu_manager_state.before-export").read_bytes() == before


def test_memory_goes_with_a_static_memory_manager_only(site: Site) -> None:
    site.config.write_text(
        config_text(
            site.folder,
            memoryManagerPolicy="Static",
            reservedMemory="[{numaNode: 0, limits: {memory: 100Mi}}]",
        )
    )
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    (site.kubelet / "cpu_manager_state").unlink()
    assert site.run("export").exit_code == 0
    written = (site.kubelet / "memory_manager_state").read_bytes()
    assert load_refusal(written, "memory", "Static") == ""
    assert list(json.loads(written)["machineState"]) == ["0", "1"]


def test_without_a_checkpoint_there_is_nothing_to_export(site: Site) -> None:
    result = site.run("export")
    assert result.exit_code == 2
    assert "there is no checkpoint" in result.output
    assert not list(site.kubelet.iterdir())


def test_verify_says_what_a_kubelet_would_find(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    words = ["verify", "--state-dir", str(site.folder / "state"), "--as-kubelet", str(site.config)]
    assert "the kubelet's" not in CliRunner().invoke(command, words).output
    site.config.write_text(config_text(site.folder, reservedSystemCPUs='"2-3"'))
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 1
    assert "the kubelet's CPU Manager would say: not all reserved cpus" in result.output


def test_a_wrong_checksum_is_told_before_the_kubelets_own_words(site: Site) -> None:
    record = {"policyName": "static", "defaultCpuSet": "0-1,6-7,12-15", "entries": APART}
    site.write_cpu(json.dumps(record | {"checksum": 7}))
    result = site.run("import")
    assert result.exit_code == 2
    assert (
        f"cpu_manager_state: cannot be used; its checksum: expected {checksum(cpu_v2(record))}, found 7; "
        "a kubelet would say: "
    ) in result.output


def test_verify_finds_nothing_wrong_with_promises_that_wait_for_the_agent(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    result = CliRunner().invoke(command, ["verify", "--state-dir", str(site.folder / "state")])
    assert result.exit_code == 0, result.output
    waiting, verdict = result.output.splitlines()[:2]
    assert waiting == ("2 allocations are imported and wait for the first start of the agent")
    assert "state.json: sound; " in verdict


def test_verify_lists_placements_that_another_configuration_would_not_have_made(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    tomorrow = site.folder / "tomorrow.yaml"
    tomorrow.write_text(config_text(site.folder, reservedSystemCPUs='"4"'))
    words = ["verify", "--state-dir", str(site.folder / "state"), "--config", str(tomorrow)]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 1
    assert "u1/db has CPUs 4, which are reserved\n" in result.output


def test_an_export_says_where_the_kubelets_verdict_depends_on_chance(site: Site) -> None:
    site.config.write_text(
        config_text(
            site.folder,
            memoryManagerPolicy="Static",
            reservedMemory="[{numaNode: 0, limits: {memory: 100Mi}}]",
        )
    )
    grouped = [Allocation(memory=(MemoryBlock(NodeMask.of(*on), "memory", 1),)) for on in ((0, 1), (0,))]
    state = State(allocations={"u1/a": grouped[0], "u2/a": grouped[1]})
    (site.folder / "state").mkdir(exist_ok=True)
    (site.folder / "state" / "state.json").write_bytes(b"".join(Encoder().encode(state, 1)))
    result = site.run("export")
    assert result.exit_code == 0, result.output
    assert (site.kubelet / "memory_manager_state").exists()
    assert (
        "warning: memory on NUMA node 0 is allocated over different sets of nodes (0 and 0-1)"
        in result.output
    )


LEVEL_RECORD = {
    "policyName": "static",
    "defaultCpuSet": "0-1,7-15",
    "entries": {"u1": {"db": "2-3", "log": "4-5", "proxy": "4-5"}, "u2": {"web": "6"}},
    "podEntries": {"u1": {"cpuSet": "2-5"}},
}


def test_pods_as_wholes_are_taken_over_and_given_back(site: Site) -> None:
    sealed = LEVEL_RECORD | {"checksum": checksum(cpu_v3(LEVEL_RECORD))}
    text = json.dumps(sealed, separators=(",", ":"))
    site.write_cpu(text)
    result = site.run("import")
    assert result.exit_code == 0, result.output
    assert site.promises() == {
        "u1/db": "2-3",
        "u1/log": "4-5",
        "u1/proxy": "4-5",
        "u2/web": "6",
        "u1/": "2-5",
    }
    checkpoint = read_checkpoint(str(site.folder / "state" / "state.json"))
    assert checkpoint is not None
    shared = [key for key, one in checkpoint.state.allocations.items() if one.is_pod_shared]
    assert shared == ["u1/log", "u1/proxy"]
    back = site.run("export", "--force")
    assert back.exit_code == 0, back.output
    assert (
        "start the kubelet with the feature gates PodLevelResources and PodLevelResourceManagers"
        in back.stderr
    )
    assert (site.kubelet / "cpu_manager_state").read_text() == text


def test_the_older_form_is_exported_where_no_pod_has_cpus_as_a_whole(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    back = site.run("export", "--force")
    assert (back.exit_code, "feature gates" in back.output) == (0, False)
    assert load_refusal((site.kubelet / "cpu_manager_state").read_bytes(), "cpu", "static") == ""
