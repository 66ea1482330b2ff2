"""A real agent whose state directory fails: real file systems, real mounts, a stand-in for the runtime."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec
from tests.lab.runtime.runtime import PluginRefusedError
from tests.lab.scenario.scenario import Scenario
from tests.lab.scenario.stage import ScenarioNode
from tests.patient_stage import patient_stage

pytestmark = pytest.mark.root

GIB = 1 << 30
PATIENCE_S = 60.0


def wait_for(is_so: Callable[[], bool], pause_s: float = 0.01) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(pause_s)


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


@contextmanager
def node(**config: object) -> Iterator[ScenarioNode]:
    """A node whose agent is not started; its state directory is taken out of the mounts at the end."""
    config = {"reservedSystemCPUs": "0", "neverRefuse": ["kube-system"], **config}
    with patient_stage(Scenario("node", "demo", (), config=config)) as made:
        made.places.state.mkdir(parents=True, exist_ok=True)
        try:
            yield made
        finally:
            made.kill_agent()
            subprocess.run(["umount", "-l", str(made.places.state)], check=False, capture_output=True)


def create(on: ScenarioNode, name: str, cpus: int = 0, namespace: str = "default") -> str:
    """Why the container was refused; empty when it runs."""
    milli, memory = cpus * 1000, GIB if cpus else 0
    spec = ContainerSpec("c", milli, milli, memory, memory)
    pod = PodSpec(name, namespace=namespace, containers=(spec,))
    on.runtime.run_pod(pod)
    try:
        on.runtime.create(pod.key, spec)
    except PluginRefusedError as error:
        return str(error)
    on.runtime.start(f"{pod.key}/c")
    return ""


def runs_on(on: ScenarioNode, name: str) -> str:
    on.server.settle()
    record = next(each for each in on.runtime.records() if each.key == f"default/{name}/c")
    return (on.places.cgroups / record.names.path.strip("/") / "cpuset.cpus").read_text().strip()


def logged(on: ScenarioNode, text: str) -> bool:
    return text in on.places.log.read_text()


def fill(directory: Path) -> Path:
    """Take all space, down to the last page."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@pytest.mark.parametrize("choice", ["refuse", "serve"])
def test_a_full_disk_is_outlived(choice: str) -> None:
    with node(onCheckpointFailure=choice) as on:
        mount("-t", "tmpfs", "-o", "size=1m,mode=700", "none", on.places.state)
        on.start_agent()
        assert create(on, "first", 4) == ""
        filler = fill(on.places.state)
        refusal = create(on, "second", 4)
        assert refusal == "" if choice == "serve" else "No space left on device" in refusal
        assert create(on, "shared") == ""
        assert create(on, "dns", namespace="kube-system") == ""
        before = {name: runs_on(on, name) for name in ("first", *(["second"] if choice == "serve" else []))}
        on.kill_agent()
        on.start_agent()
        assert {name: runs_on(on, name) for name in before} == before
        filler.unlink()
        wait_for(lambda: logged(on, "the checkpoint is saved again"))
        assert create(on, "third", 4) == ""


def test_the_end_names_what_no_checkpoint_holds() -> None:
    with node(onCheckpointFailure="serve") as on:
        mount("-t", "tmpfs", "-o", "size=1m,mode=700", "none", on.places.state)
        on.start_agent()
        fill(on.places.state)
        assert create(on, "kept", 4) == ""
        assert on.stop_agent() == 0
        assert logged(on, "the agent ends with an allocation that no checkpoint holds name=default/kept/c")


def test_a_read_only_directory_is_read_and_served_from() -> None:
    with node() as on:
        mount("-t", "tmpfs", "-o", "size=1m,mode=700", "none", on.places.state)
        on.start_agent()
        assert create(on, "first", 4) == ""
        first = runs_on(on, "first")
        on.kill_agent()
        mount("-o", "remount,ro", on.places.state)
        on.start_agent()
        assert runs_on(on, "first") == first
        assert "mounted read-only" in on.places.log.read_text()
        assert create(on, "shared") == ""
        assert "Read-only file system" in create(on, "second", 2)
        mount("-o", "remount,rw", on.places.state)
        wait_for(lambda: logged(on, "the checkpoint is saved again"))
        wait_for((on.places.state / "agent.sock").exists)
        assert create(on, "third", 2) == ""


def is_kept_again(on: ScenarioNode) -> bool:
    """Whether there is a history, once another container has come."""
    assert create(on, f"later-{len(on.runtime.records())}") == ""
    return (on.places.state / "history").exists()


def test_a_directory_that_is_removed_on_a_host_comes_back_with_its_socket() -> None:
    with node() as on:
        on.start_agent()
        assert create(on, "first", 4) == ""
        gone = on.places.state.rename(on.places.root / "gone")  # at once: the agent may be writing
        shutil.rmtree(gone, ignore_errors=True)
        wait_for((on.places.state / "state.json").exists)
        wait_for((on.places.state / "agent.sock").exists)
        wait_for((on.places.state / "lock").exists)
        assert create(on, "second", 4) == ""
        # An event while the directory was missing stops the history for some seconds. Later events are in it again.
        wait_for(lambda: is_kept_again(on), pause_s=0.5)


def test_a_mount_of_a_removed_directory_asks_for_a_restart_that_finds_the_placements() -> None:
    with node() as on:
        real = on.places.root / "on-the-host"
        real.mkdir()
        mount("--bind", real, on.places.state)
        on.start_agent()
        assert create(on, "first", 4) == ""
        first = runs_on(on, "first")
        shutil.rmtree(real)
        assert "only a restart of the agent heals that" in create(on, "second", 2)
        assert create(on, "shared") == ""
        assert create(on, "dns", namespace="kube-system") == ""
        real.mkdir()
        assert "only a restart of the agent heals that" in create(on, "third", 2)
        on.kill_agent()
        subprocess.run(["umount", str(on.places.state)], check=True)
        mount("--bind", real, on.places.state)
        on.start_agent()
        assert runs_on(on, "first") == first
        assert create(on, "fourth", 2) == ""


def test_a_file_in_place_of_the_directory_does_not_keep_the_agent_from_starting() -> None:
    with node(onCheckpointFailure="serve") as on:
        on.places.state.rmdir()
        on.places.state.write_text("")
        on.start_agent()
        assert create(on, "first", 4) == ""
        first = runs_on(on, "first")
        on.kill_agent()
        on.start_agent()
        assert runs_on(on, "first") == first
        on.places.state.unlink()
        wait_for(lambda: logged(on, "the checkpoint is saved again"))
