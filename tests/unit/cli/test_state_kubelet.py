"""A node changes between the kubelet's managers and nri-pin without draining."""

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.app.startup import lock_state_dir
from nri_plugin.cli.state import command
from nri_plugin.host.checkpoint import read_checkpoint
from nri_plugin.host.kubelet_checkpoint import checksum, cpu_v1, cpu_v2, load_refusal
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
        f"2 promises written to {site.folder}/state/state.json",
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


def test_nothing_is_imported_over_promises_that_are_there(site: Site) -> None:
    site.wrote(APART, "0-1,6-7,12-15")
    assert site.run("import").exit_code == 0
    again = site.run("import")
    assert again.exit_code == 1
    assert "already holds 2 promises of its own" in again.output


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
    assert json.loads(result.output)["promises"][0] == {"container": "u1/db", "cpus": "2-5", "mems": ""}
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
    assert waiting == (
        "2 promises are imported and wait for the agent, which meets their containers at its first start"
    )
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
