"""The picture of `nri-pin top`, and what it is made of."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from nri_plugin.agent.observing.status_client import (
    DriftRow,
    IncompletePodRow,
    RefusalRow,
    RefusedContainerRow,
    RuntimeRow,
    SiblingRow,
)
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.output import plain
from nri_plugin.cli.state.source import NO_RUNTIME, Seen
from nri_plugin.cli.top.model import Model, Sample, TopRow
from nri_plugin.cli.top.screen import age_words, frame, keys_in
from nri_plugin.cli.top.top import Usage, command, present
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine
from tests.builders import node as a_node

NODE = a_node()
NOW = 1_700_000_000.0


def state_of(*names: str) -> State:
    """Containers of two exclusive CPUs each, from CPU 2 on."""
    pods, containers, allocations = {}, {}, {}
    for number, name in enumerate(names):
        pods[name] = PodRecord(name, f"sb-{name}", f"{name}-0", "shop", QOSClass.GUARANTEED, f"/p/{name}")
        cgroup = CgroupRef(f"/p/{name}", f"/p/{name}/id-{name}")
        containers[f"id-{name}"] = ContainerRecord(f"id-{name}", name, name, Phase.RUNNING, cgroup)
        allocations[f"{name}/{name}"] = Allocation(CPUSet.of(2 + 2 * number, 3 + 2 * number))
    return State(pods, containers, allocations)


CONTAINERD = RuntimeRow("containerd", "2.1.9")


def sample(state: State, *, connected: bool = True, **more: object) -> Sample:
    found = Seen(state, NODE, has_parts=True, machine="")
    told = {"runtime": CONTAINERD if connected else None, **more}
    return Sample(found, connected, "agent at S", **told)  # type: ignore[arg-type]


def picture(model: Model, width: int = 80, height: int | None = 24, **used: float) -> list[str]:
    lines = model.lines({f"id-{name}": value for name, value in used.items()}, lambda _row: 65.0, NOW)
    return [line.text for line in frame(model, lines, width, height, NOW)]


def test_the_picture_has_totals_bars_and_a_row_for_each_container() -> None:
    lines = picture(Model(sample(state_of("db", "web"))), db=1.5)
    assert lines[2] == "containers 2  unplaced 0  exclusive 4  shared pool 12  reserved 2"
    assert lines[3] == "available 10 of 16 CPUs  refused 0  drifts 0"
    assert lines[4] == "NUMA 0  [######rrr...]  2/8 free  NUMA 1  [............]  8/8 free"
    assert lines[7].split() == ["shop/db-0/db", "2", "2-3", "0", "0", "-", "NSUC", "1.50", "1m5s"]
    assert lines[8].split() == ["shop/web-0/web", "2", "4-5", "0", "0", "-", "NSUC", "-", "1m5s"]
    assert len(lines) == 24
    assert lines[-1].startswith("q quit")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 15), (40, 10), (200, 60), (80, 6)])
def test_it_never_is_larger_than_the_terminal(width: int, height: int) -> None:
    model = Model(sample(state_of(*(f"container-with-a-long-name-{number}" for number in range(5)))))
    model.take(sample(State()), NOW)
    model.take(sample(state_of("db")), NOW)
    lines = picture(model, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= max(width, 66)


def test_many_numa_nodes_take_a_quarter_of_the_screen_and_no_more() -> None:
    node = a_node(machine(nodes=64))
    model = Model(Sample(Seen(State(), node, has_parts=True, machine=""), True, ""))
    lines = picture(model)
    assert sum(line.startswith("NUMA") for line in lines) <= 6
    assert any("more lines of NUMA nodes" in line for line in lines)


def test_what_changed_is_marked_for_a_while_and_logged() -> None:
    model = Model(sample(state_of("db")))
    (new,) = model.take(sample(state_of("db", "web")), NOW)
    assert new.text == "gained shop/web-0/web: CPUs 4-5"
    lines = picture(model)
    assert any(line.startswith("* shop/web-0/web") for line in lines)
    assert any(line.startswith("  shop/db-0/db") for line in lines)
    assert lines[-2].endswith(new.text)
    model.take(sample(state_of("db", "web")), NOW + 60)
    assert not any(line.startswith("*") for line in picture(model))


def test_refusals_and_drifts_are_told_once() -> None:
    refused = RefusalRow(
        1, "u", "shop", "big-0", "big", "TopologyAffinityError", "TopologyAffinityError: too big"
    )
    drift = DriftRow(1, "/c", "id", "shop/db-0/db", "0-3", "0-3", "2-3", "all-cpus", "watch", 1, False)
    model = Model(sample(State()))
    found = model.take(sample(State(), refusals=(refused,), drifts=(drift,)), NOW)
    assert [one.text for one in found] == [
        "refused shop/big-0/big: TopologyAffinityError: too big",
        "drift shop/db-0/db: found CPUs 0-3, should be 2-3 (all-cpus)",
    ]
    assert model.take(sample(State(), refusals=(refused,), drifts=(drift,)), NOW) == []
    assert "refused 1  drifts 1" in "  ".join(picture(model))


def test_without_the_agent_that_is_said_and_its_counts_are_not_known() -> None:
    model = Model(sample(state_of("db")))
    (new,) = model.take(sample(state_of("db"), connected=False), NOW)
    assert new.facts == {"what": "agent", "connected": False}
    lines = picture(model)
    assert "AGENT AWAY; from its checkpoint" in lines[0]
    assert "refused ?  drifts ?" in "  ".join(lines)


def test_an_agent_that_no_runtime_asks_is_told_apart_from_one_that_places() -> None:
    model = Model(sample(state_of("db")))
    (gone,) = model.take(sample(state_of("db"), runtime=None), NOW)
    assert gone.facts == {"what": "runtime", "connected": False}
    assert gone.text == NO_RUNTIME
    words = " ".join(" ".join(picture(model)[:5]).split())
    assert f"{NO_RUNTIME}; nri-pin doctor tells why" in words
    assert max(map(len, picture(model, 40, 20))) <= 66
    (back,) = model.take(sample(state_of("db")), NOW)
    assert (back.text, back.facts["connected"]) == ("containerd 2.1.9 asks the agent", True)
    assert not any("no runtime" in line for line in picture(model)[:5])


@pytest.mark.parametrize(
    ("one", "agent", "connected", "runtime"),
    [
        (sample(State()), True, True, {"name": "containerd", "version": "2.1.9"}),
        (sample(State(), runtime=None), True, False, None),
        (sample(State(), connected=False), False, False, None),
    ],
)
def test_connected_means_that_a_runtime_asks(
    one: Sample, agent: bool, connected: bool, runtime: object
) -> None:
    told = present(one, [], NOW)
    assert (told["agent"], told["connected"], told["runtime"]) == (agent, connected, runtime)


def test_times_are_utc_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        model = Model(sample(state_of("db")))
        model.take(sample(state_of("db", "web")), NOW)
        lines = picture(model)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert lines[0] == "nri-pin top  22:13:20Z"
    assert lines[-2].startswith("22:13:20Z gained")


SORTED = {
    "name": ["a", "b", "c"],
    "cpus": ["a", "b", "c"],
    "use": ["b", "a", "c"],
    "numa": ["a", "b", "c"],
    "age": ["a", "b", "c"],
}


def test_every_sort_is_reached_by_its_key_in_turn() -> None:
    model = Model(sample(state_of("c", "a", "b")))
    for sort, names in SORTED.items():
        assert model.sort == sort
        found = model.lines({"id-b": 2.0, "id-a": 1.0}, lambda _row: None, NOW)
        if sort != "numa":
            assert [line.row.record.name for line in found] == names
        model.next_sort()
    assert model.sort == "name"


def test_a_filter_and_scrolling_choose_rows() -> None:
    model = Model(sample(state_of("a", "b", "c")))
    model.pattern = "b-0"
    assert [line.row.record.name for line in model.lines({}, lambda _row: None, NOW)] == ["b"]
    model.pattern = "nobody"
    assert "no container has 'nobody' in its name" in "\n".join(picture(model))
    model.pattern, model.scroll = "", 99
    lines = picture(model, height=10)
    assert any("above, 0 below" in line for line in lines)


def test_an_unplaced_container_is_marked() -> None:
    state = state_of("db")
    (record,) = state.containers.values()
    model = Model(sample(replace(state, containers={"id-db": replace(record, unplaced="why")})))
    assert any("shop/db-0/db !" in line for line in picture(model))


AGES = {None: "-", 0.4: "0s", 59: "59s", 60: "1m", 3725: "1h2m", 90061: "1d1h", 86400: "1d"}


@pytest.mark.parametrize(("seconds", "words"), AGES.items())
def test_ages_are_told_in_two_units(seconds: float | None, words: str) -> None:
    assert age_words(seconds) == words


KEYS = {
    "q": ["q"],
    "\x1b[A\x1b[B": ["up", "down"],
    "\x1b": ["escape"],
    "a\rb": ["a", "enter", "b"],
    "\x1b[5~": ["page up"],
    "\x1b[24~s": ["s"],
}


@pytest.mark.parametrize(("text", "keys"), KEYS.items())
def test_keys_are_known_in_any_piece_of_input(text: str, keys: list[str]) -> None:
    assert keys_in(text) == keys


def test_use_is_what_was_used_between_two_looks(tmp_path: Path) -> None:
    state = state_of("db")
    cgroup = tmp_path / "p/db/id-db"
    cgroup.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu\n")
    usage = Usage(str(tmp_path))
    assert not usage.read(state.containers.values(), 10.0)
    (cgroup / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 5\n")
    assert usage.read(state.containers.values(), 20.0)
    assert usage.cpus_used == {}
    (cgroup / "cpu.stat").write_text("usage_usec 4000000\nuser_usec 5\n")
    usage.read(state.containers.values(), 22.0)
    assert usage.cpus_used == {"id-db": 1.5}


def test_age_is_that_of_the_first_process(tmp_path: Path) -> None:
    (record,) = state_of("db").containers.values()
    cgroup = tmp_path / "p/db/id-db"
    cgroup.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    assert Usage(str(tmp_path)).age_s(record, 10.0) is None
    (cgroup / "cgroup.procs").write_text("1\n")
    age = Usage(str(tmp_path)).age_s(record, 1e9)
    assert age is not None
    assert age > 0


def test_without_a_cgroup_tree_nothing_is_known_of_use(tmp_path: Path) -> None:
    usage = Usage(str(tmp_path / "nowhere"))
    assert not usage.read(state_of("db").containers.values(), 1.0)


def test_once_prints_a_checkpoint_without_control_characters(tmp_path: Path) -> None:
    CheckpointFile(str(tmp_path), NODE, durable=False).save(state_of("db"))
    result = CliRunner().invoke(command, ["--once", "--state-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "shop/db-0/db" in result.output
    assert "\x1b" not in result.output
    assert "q quit" not in result.output


def test_once_in_json_is_one_line(tmp_path: Path) -> None:
    CheckpointFile(str(tmp_path), NODE, durable=False).save(state_of("db"))
    result = CliRunner().invoke(command, ["--once", "-o", "json", "--state-dir", str(tmp_path)])
    told = json.loads(result.output)
    assert (told["what"], told["connected"], told["refused"]) == ("now", False, None)
    assert told["available_by_numa_node"] == {"0": "4-7", "1": "8-15"}
    assert told["containers"][0]["cpus"] == "2-3"


def test_a_line_knows_what_it_shows() -> None:
    (line,) = Model(sample(state_of("db"))).lines({}, lambda _row: None, NOW)
    assert isinstance(line, TopRow)
    assert (line.used, line.age_s, line.is_fresh) == (None, None, False)


WRONG = {"a negative interval": ["--interval", "-1"], "an unknown option": ["--colour"]}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_wrong_usage_exits_2(words: list[str]) -> None:
    assert CliRunner().invoke(command, words).exit_code == 2


def block_of_two() -> State:
    """A pod that owns CPUs 2-7: one container has a slice, the other shares the rest."""
    state = state_of("db")
    log = replace(state.containers["id-db"], id="id-log", name="log")
    held = {
        "db/": Allocation(CPUSet.parse("2-7")),
        "db/db": Allocation(CPUSet.parse("2-4")),
        "db/log": Allocation(CPUSet.parse("5-7"), is_pod_shared=True),
    }
    return replace(state.with_container(log), allocations=held)


def test_an_ended_init_container_has_the_cpus_that_it_keeps() -> None:
    state = state_of("db")
    setup = replace(state.containers["id-db"], id="id-setup", name="setup", phase=Phase.STOPPED)
    held = {
        "db/db": Allocation(CPUSet.parse("2-3")),
        "db/setup": Allocation(CPUSet.parse("2-5"), is_init=True),
    }
    state = replace(state.with_container(setup), allocations=held)
    (row,) = [line.split() for line in picture(Model(sample(state))) if "setup" in line]
    assert row[:4] == ["shop/db-0/setup", "[kept]", "2", "4-5"]


def test_a_pod_that_owns_cpus_has_a_line_and_its_containers_say_how_they_share() -> None:
    lines = picture(Model(sample(block_of_two())))
    assert "pod shop/db-0: CPUs 2-7 (6) are the pod's, pod shared pool 5-7" in lines
    assert lines[2].startswith("containers 2  unplaced 0  exclusive 6 ")
    rows = [line.split("  ")[1] for line in lines if line.startswith("  shop/db-0/")]
    assert rows == ["shop/db-0/db [slice]", "shop/db-0/log [pod shared]"]
    many = [f"p{number}" for number in range(5)]
    state = replace(
        state_of(*many),
        allocations={f"{name}/": Allocation(CPUSet.of(2 + at)) for at, name in enumerate(many)},
    )
    assert "and 2 more pods with CPUs of their own" in picture(Model(sample(state)))


def test_a_pod_that_runs_in_part_is_counted_and_told_once() -> None:
    refused = (RefusedContainerRow("late", "TopologyAffinityError", "TopologyAffinityError: no room"),)
    row = IncompletePodRow("db", "shop", "db-0", refused, (SiblingRow("db", "2-3", "", is_created=True),))
    model = Model(sample(state_of("db")))
    now = sample(state_of("db"), incomplete=(row,))
    (new,) = model.take(now, NOW)
    assert new.facts["what"] == "incomplete"
    assert new.text.startswith("shop/db-0: incomplete: refused: late (TopologyAffinityError)")
    assert model.take(now, NOW) == []
    assert "incomplete pods 1" in " ".join(picture(model))
    (pod,) = plain(present(now, model.lines({}, lambda _row: None, NOW), NOW))["pods"]
    assert pod["incomplete"]["refused"][0]["container"] == "late"
