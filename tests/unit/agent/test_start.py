import os
import threading
import time
from pathlib import Path

import pytest

from nri_plugin.agent.serving.checkpoint_saver import (
    CheckpointSaver,
    CheckpointWriter,
    DirectStore,
    open_store,
)
from nri_plugin.agent.serving.serving_lease import lock_state_dir, lock_where_possible, unusable_state_dir
from nri_plugin.agent.start import (
    build_handler,
    build_node,
    load_state,
    read_node,
    warn_of_surprises,
)
from nri_plugin.checkpoint.file import CheckpointFile, read_checkpoint
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.config.loading import load_text
from nri_plugin.model.errors import CheckpointError, ConfigError, HostError
from nri_plugin.model.options import Effect
from nri_plugin.model.records import Allocation
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.agent_fakes import Bench, recording_log
from tests.agent_process import config_text, machine_root
from tests.builders import container, cpus, node, pod
from tests.topology_rows import topology_of_rows

STATE = State().with_allocation("p/c", Allocation(cpus=cpus("2-3"), cpu_milli=2000))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    machine_root(tmp_path)
    return tmp_path


def config(folder: Path, **more: str):
    return load_text(config_text(folder, **more), "test")


def test_a_handler_knows_machine_reserved_cpus_and_what_was_promised(folder: Path):
    CheckpointFile(str(folder / "state"), durable=False).save(STATE)
    log, lines = recording_log()
    handler = build_handler(config(folder), log, time.monotonic)
    assert handler.node.topology.online == cpus("0-15")
    assert handler.node.reserved == cpus("0-1")
    assert handler.state == STATE
    assert lines.texts("WARNING") == []
    assert lines.fields("ready")["allocations"] == 1
    handler.close()


def test_what_is_seldom_meant_is_said():
    log, lines = recording_log()
    uneven = topology_of_rows([(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (2, 2, 0, 0, 0)])
    warn_of_surprises(node(uneven, reserved="0-2", full_pcpus_only=True), log)
    cores, none_left = lines.texts("WARNING")
    assert cores.startswith("full-pcpus-only does not keep cores whole on this machine")
    assert none_left.startswith("no CPU is left for exclusive use")


def test_without_a_cgroup_tree_the_runtime_is_asked_and_it_is_said(folder: Path):
    log, lines = recording_log()
    made = config(folder, cgroupRoot=str(folder / "none"))
    tree, found = read_node(made, log)
    assert tree is None
    assert found.options.effect is Effect.UPDATE
    assert any("no cgroup tree: running containers are changed" in text for text in lines.texts("WARNING"))


def test_on_cgroup_v1_there_is_no_pool_floor(folder: Path):
    v1 = folder / "v1" / "cpuset"
    v1.mkdir(parents=True)
    (v1 / "cpuset.cpus").write_text("0-15\n")
    made = config(folder, cgroupRoot=str(folder / "v1"), poolFloor="true")
    tree, found = read_node(made, recording_log()[0])
    assert tree is not None
    assert tree.version == 1
    assert not found.options.pool_floor


def test_on_cgroup_v2_the_pool_floor_is_as_configured(folder: Path):
    made = config(folder, poolFloor="true")
    assert read_node(made, recording_log()[0])[1].options.pool_floor


def test_an_unreadable_machine_is_named(folder: Path):
    with pytest.raises(HostError, match="/nowhere"):
        build_node(config(folder, sysfsRoot="/nowhere"), None)


def test_a_configuration_that_does_not_fit_the_machine_is_refused(folder: Path):
    with pytest.raises(ConfigError, match="99 do not exist"):
        build_node(config(folder, reservedSystemCPUs='"99"'), None)


def test_a_damaged_checkpoint_is_said_and_the_state_starts_empty(tmp_path: Path):
    (tmp_path / "state.json").write_text("no")
    log, lines = recording_log()
    assert load_state(CheckpointFile(str(tmp_path), durable=False), log) == State()
    fields = lines.fields("the checkpoint cannot be used")
    assert fields["kept_aside"] == str(tmp_path / "state.json.damaged-1")
    assert fields["rebuilt_from"] == "what the runtime reports"


def journaled(folder: Path) -> tuple[State, Path]:
    """What an agent leaves that is killed after two events: its state before the second, and the file."""
    file = CheckpointFile(str(folder), durable=False)
    first = State(allocations={"p/a": Allocation(cpus("2"))})
    file.append(first)
    file.append(first.with_allocation("p/b", Allocation(cpus("3"))))
    return first, Path(file.path)


def test_a_damaged_record_is_said_and_the_state_before_it_taken(tmp_path: Path):
    first, path = journaled(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"key":"p/b"', b'"key":"p/B"'))
    log, lines = recording_log()
    assert load_state(CheckpointFile(str(tmp_path), durable=False), log) == first
    fields = lines.fields("the checkpoint cannot be used")
    assert fields["kept_aside"] == f"{path}.damaged-1"
    assert fields["rebuilt_from"] == "the records before the damage"


def test_a_record_that_was_not_finished_is_said_and_no_damage(tmp_path: Path):
    first, path = journaled(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    log, lines = recording_log()
    assert load_state(CheckpointFile(str(tmp_path), durable=False), log) == first
    (line,) = lines.lines
    assert line[:2] == (
        "INFO",
        "the last record of the checkpoint was not finished and is left out, its event was not answered",
    )


def test_a_first_start_says_nothing_of_a_checkpoint(tmp_path: Path):
    log, lines = recording_log()
    assert load_state(CheckpointFile(str(tmp_path), durable=False), log) == State()
    assert lines.lines == []


def test_a_state_directory_in_memory_is_saved_at_once_and_one_on_disk_by_a_thread(tmp_path: Path):
    in_memory = CheckpointFile(str(tmp_path), durable=False)
    assert isinstance(open_store(in_memory, State()), DirectStore)
    on_disk = open_store(CheckpointFile(str(tmp_path), durable=True), State())
    assert isinstance(on_disk, CheckpointWriter)
    on_disk.close(5)


def test_direct_store_saves(tmp_path: Path):
    file = CheckpointFile(str(tmp_path), durable=False)
    store = DirectStore(file)
    store.save(STATE, 0.0)
    store.close(0.0)
    assert file.load().state == STATE


def test_a_disk_that_stalls_past_half_of_the_time_refuses_the_container(tmp_path: Path):
    stalled = threading.Event()

    class StalledFile(CheckpointFile):
        def append(self, state: State) -> None:
            stalled.wait()

    bench = Bench(node(pool_floor=False))
    store = CheckpointWriter(StalledFile(str(tmp_path)), State())
    bench.handler.checkpoint = CheckpointSaver(store, State(), bench.handler._log)
    of = pod("exclusive", cpu=2)
    try:
        answer = bench.ask(nri.CreateContainer(of, container(of, cpu=2)), time_left=0.02)
    finally:
        stalled.set()
        bench.handler.close()
    assert "not on disk in time" in answer.refusal
    assert bench.handler.state == State()
    assert bench.cgroups.values == {}


def test_the_lock_is_exclusive_and_names_its_holder(tmp_path: Path):
    held = lock_state_dir(str(tmp_path / "state"))
    with pytest.raises(CheckpointError, match=rf"another agent \(process {os.getpid()}\) uses this"):
        lock_state_dir(str(tmp_path / "state"))
    os.close(held)
    os.close(lock_state_dir(str(tmp_path / "state")))


def test_nobody_is_led_to_a_second_agent_by_another_state_directory(tmp_path: Path):
    held = lock_state_dir(str(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        lock_state_dir(str(tmp_path))
    os.close(held)
    assert str(caught.value).startswith(f"{tmp_path}/lock: another agent (process {os.getpid()})")
    assert str(caught.value).endswith(
        "stop it first: two agents on one node would give the same CPUs to two containers"
    )


def test_the_state_directory_is_made_for_its_owner_alone(tmp_path: Path):
    os.close(lock_state_dir(str(tmp_path / "a" / "state")))
    assert (tmp_path / "a" / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_file_for_a_state_directory_is_called_one(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match=rf"^{tmp_path}/file{below}: .*, but a directory is needed; give"
    ):
        lock_state_dir(f"{tmp_path}/file{below}")


def test_a_user_without_rights_is_told_to_be_root_or_to_name_a_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = unusable_state_dir("/run/nri-pin", PermissionError(13, "Permission denied"))
    assert str(error) == "/run/nri-pin: permission denied; run as root, or give --state-dir DIR"


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path):
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(CheckpointError, match="give another directory with --state-dir"):
        lock_state_dir(str(tmp_path))
    assert not (tmp_path / "target").exists()


def test_what_a_pasted_kubelet_configuration_says_beside_placement_is_listed_in_one_line(
    folder: Path,
) -> None:
    log, lines = recording_log()
    pasted = config(folder, kind="KubeletConfiguration", maxPods="9", failSwapOn="true")
    build_handler(pasted, log, time.monotonic).close()
    told = "keys of the KubeletConfiguration that do not concern placement are ignored"
    assert lines.fields(told)["keys"] == "cgroupRoot,maxPods,failSwapOn"
    assert lines.texts("INFO").count(told) == 1


def test_a_state_directory_that_everybody_may_write_to_is_said_and_used(folder: Path):
    (folder / "state").mkdir(mode=0o777)
    (folder / "state").chmod(0o777)
    log, lines = recording_log()
    handler = build_handler(config(folder), log, time.monotonic)
    assert lines.texts("WARNING") == ["the state directory is not safe"]
    assert "everybody may write to it (mode 0777)" in handler.checkpoint.unready()
    assert handler.checkpoint.save(STATE, 1.0) is None


def test_a_former_generation_that_was_loaded_is_written_to_the_checkpoint_again(folder: Path):
    file = CheckpointFile(str(folder / "state"), durable=False)
    file.append(STATE)
    Path(file.path).rename(f"{file.path}.previous")
    handler = build_handler(config(folder), recording_log()[0], time.monotonic)
    assert handler.state == STATE
    handler.checkpoint.look(handler.state)
    found = read_checkpoint(file.path)
    assert found is not None
    assert found.state == STATE
    handler.close()


def test_no_directory_keeps_the_agent_from_starting(folder: Path):
    (folder / "state").write_text("a file")
    log, lines = recording_log()
    handler = build_handler(config(folder), log, time.monotonic)
    assert handler.state == State()
    assert lines.fields("the checkpoint cannot be saved")["new_allocations"] == "refused"
    assert "is no directory" in handler.checkpoint.unready()
    assert lock_where_possible(str(folder / "state")) is None


def test_another_agents_lock_keeps_the_agent_from_starting(tmp_path: Path):
    held = lock_where_possible(str(tmp_path))
    assert held is not None
    with pytest.raises(CheckpointError, match="another agent"):
        lock_where_possible(str(tmp_path))
    os.close(held)


@pytest.mark.parametrize(
    ("written", "serves"),
    [({}, False), ({"onCheckpointFailure": "serve"}, True), ({"observe": "true"}, True)],
)
def test_what_cannot_be_saved_is_refused_unless_told_otherwise(
    folder: Path, written: dict[str, str], serves: bool
):
    log, _ = recording_log()
    assert build_handler(config(folder, **written), log, time.monotonic).checkpoint.serves is serves


def test_a_checkpoint_that_tells_of_another_machine_is_saved_anew(folder: Path):
    CheckpointFile(str(folder / "state"), node(), durable=False).save(STATE)
    log, _ = recording_log()
    handler = build_handler(config(folder), log, time.monotonic)
    handler.checkpoint.look(handler.state)
    found = read_checkpoint(str(folder / "state" / "state.json"))
    assert found is not None
    assert found.facts == NodeFacts.of(handler.node)
    assert found.state == STATE
