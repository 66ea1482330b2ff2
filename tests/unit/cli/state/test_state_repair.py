"""`nri-pin state repair`: what was wrong, what is done about it, and that nothing is invented."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.agent.serving_lease import lock_state_dir
from nri_plugin.checkpoint.file import CheckpointFile, read_checkpoint
from nri_plugin.cli.state.state import command
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import node as a_node

MACHINE = "pack:2 numa:1(memory=16GiB) l3:1 core:4 pu:2"


def pod(uid: str, name: str) -> PodRecord:
    return PodRecord(uid, f"sb-{uid}", name, "shop", QOSClass.GUARANTEED, f"/kubepods/pod{uid}")


def record(uid: str, name: str, stored: str = "") -> ContainerRecord:
    cgroup = CgroupRef(f"/kubepods/pod{uid}", f"/kubepods/pod{uid}/{name}")
    return ContainerRecord(f"id-{name}", uid, name, Phase.RUNNING, cgroup, CPUSet.parse(stored))


def state(db: str = "2-3", web: str = "8-9", *, stored: bool = False) -> State:
    return State(
        {"u1": pod("u1", "db-0"), "u2": pod("u2", "web-0")},
        {
            "id-db": record("u1", "db", db if stored else ""),
            "id-web": record("u2", "web", web if stored else ""),
        },
        {"u1/db": Allocation(CPUSet.parse(db)), "u2/web": Allocation(CPUSet.parse(web))},
    )


class Site:
    """A state directory, the machine it is about, and a cgroup tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "state/state.json"
        self.former = folder / "state/state.json.previous"
        (folder / "machine.txt").write_text(MACHINE)
        (folder / "cgroup").mkdir()
        (folder / "cgroup/cgroup.controllers").write_text("cpuset\n")

    def save(self, *states: State) -> None:
        file = CheckpointFile(str(self.folder / "state"), a_node(), durable=False)
        for one in states:
            file.save(one)

    def runs(self, **cpus: str) -> None:
        for name, value in cpus.items():
            folder = self.folder / "cgroup/kubepods" / ("podu1" if name == "db" else "podu2") / name
            folder.mkdir(parents=True)
            (folder / "cpuset.cpus").write_text(f"{value}\n")

    def repair(self, *words: str, seen: bool = False) -> Result:
        tree = ("--cgroup-root", str(self.folder / "cgroup")) if seen else ()
        machine = ("--machine", str(self.folder / "machine.txt"))
        options = ("--state-dir", str(self.folder / "state"), *machine, *tree)
        return CliRunner().invoke(command, ["repair", *options, *words])

    def promises(self) -> dict[str, str]:
        found = read_checkpoint(str(self.file))
        assert found is not None
        return {key: str(one.cpus) for key, one in found.state.allocations.items()}

    def change(self, before: str, after: str) -> None:
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after, 1))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def cut(site: Site) -> None:
    os.truncate(site.file, site.file.stat().st_size - 40)


def cut_to_nothing(site: Site) -> None:
    os.truncate(site.file, 0)


def flip(site: Site) -> None:
    data = bytearray(site.file.read_bytes())
    data[data.index(b'"cpus":"8-9"') + 8] ^= 1
    site.file.write_bytes(data)


def noise(site: Site) -> None:
    site.file.write_bytes(bytes(range(256)) * 40)


DAMAGES: dict[str, tuple[Callable[[Site], None], str]] = {
    "cut short": (cut, "it does not end in a checksum"),
    "cut to nothing": (cut_to_nothing, "it does not begin as"),
    "a flipped bit": (flip, "its checksum is"),
    "a changed checksum": (lambda site: site.change('"crc32:', '"crc32:f'), "it does not end in a checksum"),
    "a newer version": (lambda site: site.change('"version":3', '"version":9'), "it has version 9"),
    "noise": (noise, "it does not begin as"),
    "gone": (lambda site: site.file.unlink(), "it is not there"),
}


def test_a_directory_in_the_checkpoints_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    result = CliRunner().invoke(command, ["repair", "--state-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path}/state.json: is no file; move it away" in result.output


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES)
def test_with_the_generation_before_nothing_is_lost(
    site: Site, damage: Callable[[Site], None], text: str
) -> None:
    site.save(state(), state())
    damage(site)
    before = {path: path.read_bytes() for path in site.file.parent.iterdir()}
    shown = site.repair()
    assert shown.exit_code == 1
    assert text in " ".join(shown.output.split())
    assert ("keeps what is there" in " ".join(shown.output.split())) is site.file.exists()
    assert {path: path.read_bytes() for path in before} == before
    done = site.repair("--yes")
    assert done.exit_code == 0, done.output
    assert site.promises() == {"u1/db": "2-3", "u2/web": "8-9"}
    assert site.former.read_bytes() == before[site.former]
    if site.file in before:
        assert (site.file.parent / "state.json.damaged-1").read_bytes() == before[site.file]
    verified = CliRunner().invoke(command, ["verify", "--file", str(site.file)])
    assert verified.exit_code == 0, verified.output


@pytest.mark.parametrize("damage", [cut, flip], ids=["cut short", "a flipped bit"])
def test_without_it_rows_that_the_containers_own_row_confirms_stay(
    site: Site, damage: Callable[[Site], None]
) -> None:
    site.save(state(stored=True))
    damage(site)
    done = site.repair("--yes")
    assert done.exit_code == 0
    assert site.promises()["u1/db"] == "2-3"
    assert "9-9" not in site.promises().values()


def test_rows_that_nothing_confirms_are_named_and_left_out(site: Site) -> None:
    site.save(state())
    cut(site)
    done = site.repair("--yes")
    assert "left out: shop/db-0/db: CPUs 2-3, because only the damaged file says so" in " ".join(
        done.output.split()
    )
    assert site.promises() == {}


def test_rows_that_the_cgroups_confirm_stay(site: Site) -> None:
    site.save(state())
    cut(site)
    site.runs(db="2-3", web="0-15")
    assert site.repair("--yes", seen=True).exit_code == 0
    assert site.promises() == {"u1/db": "2-3"}


def test_a_newer_row_beats_the_generation_before_where_it_is_confirmed(site: Site) -> None:
    site.save(state(), state("2-5", stored=True))
    site.change('"checksum":"crc32:', '"checksum":"crc32:0')
    assert site.repair("--yes").exit_code == 0
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-9"}


def test_a_newer_row_that_nothing_confirms_gives_way_to_the_generation_before(site: Site) -> None:
    site.save(state(), state())
    flip(site)
    done = " ".join(site.repair("--yes").output.split())
    assert "left out: shop/web-0/web: CPUs " in done
    assert "from the damaged file, which nothing else confirms; a sound record has CPUs 8-9" in done
    assert site.promises()["u2/web"] == "8-9"


def test_overlapping_promises_are_decided_by_where_the_containers_run(site: Site) -> None:
    site.save(state("2-5", "4-7"))
    site.runs(db="0-15", web="4-7")
    done = site.repair("--yes", seen=True)
    assert done.exit_code == 0
    assert "left out: shop/db-0/db: CPUs 2-5, because shop/web-0/web runs on CPUs 4-7" in " ".join(
        done.output.split()
    )
    assert site.promises() == {"u2/web": "4-7"}


BOTH = {"both run on theirs": ("2-5", "4-7"), "neither does": ("0-15", "0-15")}


@pytest.mark.parametrize(("db", "web"), BOTH.values(), ids=BOTH)
def test_overlapping_promises_that_cannot_be_decided_are_named_and_nothing_is_written(
    site: Site, db: str, web: str
) -> None:
    site.save(state("2-5", "4-7"))
    site.runs(db=db, web=web)
    before = site.file.read_bytes()
    done = site.repair("--yes", seen=True)
    assert done.exit_code == 1
    said = "undecided: shop/db-0/db (CPUs 2-5) and shop/web-0/web (CPUs 4-7) both have CPUs 4-5"
    assert said in " ".join(done.output.split())
    assert site.file.read_bytes() == before
    given = site.repair("--yes", "--give-up", "shop/db-0/db", seen=True)
    assert given.exit_code == 0
    assert site.promises() == {"u2/web": "4-7"}


def test_cpus_that_the_machine_lacks_are_taken_out_of_promises(site: Site) -> None:
    site.save(state("2-3,100", "200-201"))
    done = site.repair("--yes")
    assert done.exit_code == 0
    assert site.promises() == {"u1/db": "2-3"}
    assert "shop/db-0/db: of CPUs 2-3,100 those that this machine does not have; CPUs 2-3 stay" in " ".join(
        done.output.split()
    )


def test_offline_cpus_stay_promised(site: Site) -> None:
    (site.folder / "machine.txt").write_text(f"topology: {MACHINE}\noffline: 3")
    site.save(state())
    result = site.repair()
    assert (result.exit_code, "nothing to repair" in result.output) == (0, True)


def test_a_sound_checkpoint_is_left_alone(site: Site) -> None:
    site.save(state(), state())
    result = site.repair("--yes")
    assert (result.exit_code, result.output) == (0, f"{site.file}: nothing to repair\n")
    assert not (site.file.parent / "state.json.damaged-1").exists()


def test_json_tells_the_plan(site: Site) -> None:
    site.save(state(), state())
    cut(site)
    told = json.loads(site.repair("-o", "json").output)
    assert (told["repaired"], told["kept_aside"], told["generation"]) == (False, None, 3)
    assert told["stays"] == ["shop/db-0/db: CPUs 2-3", "shop/web-0/web: CPUs 8-9"]


def test_it_refuses_while_an_agent_runs(site: Site) -> None:
    site.save(state())
    cut(site)
    lock = lock_state_dir(str(site.file.parent))
    try:
        result = site.repair("--yes")
    finally:
        os.close(lock)
    assert result.exit_code == 1
    assert f"the agent with process id {os.getpid()} works on it; stop it first" in result.output


WRONG: dict[str, tuple[list[str], str]] = {
    "both": (["--yes", "--dry-run"], "exclude each other"),
    "a name that nobody has": (["--give-up", "shop/x/y"], "there is no allocation under the name"),
    "another machine": (["--machine", "demo"], "another machine"),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_wrong_usage_exits_2(site: Site, words: list[str], text: str) -> None:
    site.save(state())
    result = site.repair(*words)
    assert (result.exit_code, text in result.output) == (2, True), result.output


def test_a_directory_without_anything_exits_2(site: Site) -> None:
    assert site.repair().exit_code == 2
    (site.folder / "state").mkdir()
    result = site.repair()
    assert (result.exit_code, "no generation before it" in result.output) == (2, True)


def appended(site: Site) -> list[bytes]:
    """An agent ended without an orderly stop after three events; returns the parts of its checkpoint."""
    file = CheckpointFile(str(site.folder / "state"), a_node(), durable=False)
    parts, size = [], 0
    for one in (state(), state("2-3", "8-11"), state("2-5", "8-11"), state("2-5", "8-11").released("u2")):
        file.append(one)
        parts.append(site.file.read_bytes()[size:])
        size += len(parts[-1])
    return parts


def test_a_journal_is_shown_verified_and_compared(site: Site) -> None:
    appended(site)
    for verb, said in (("show", "shop/db-0"), ("verify", "generation 4, 2 pods, 2 containers, 1 allocation")):
        done = CliRunner().invoke(command, [verb, "--file", str(site.file)])
        assert done.exit_code == 0, done.output
        assert said in " ".join(done.output.split())
    shutil.copy(site.file, site.folder / "copy.json")
    done = CliRunner().invoke(command, ["diff", str(site.folder / "copy.json"), str(site.file)])
    assert (done.exit_code, done.output) == (0, "")
    done = CliRunner().invoke(command, ["convert", str(site.file), "-", "--to", "checkpoint"])
    assert json.loads(done.stdout)["version"] == 3
    assert [row["key"] for row in json.loads(done.stdout)["allocations"]] == ["u1/db"]


def test_records_behind_a_damaged_one_are_taken(site: Site) -> None:
    """Each of them says what it sets; only what the damaged one said is uncertain."""
    document, web, db, release = appended(site)
    site.file.write_bytes(document + web.replace(b"8-11", b"8-13") + db + release)
    shown = " ".join(site.repair().output.split())
    assert "damaged in record 1 of its journal" in shown
    assert site.repair("--yes").exit_code == 0
    assert site.promises() == {"u1/db": "2-5"}


def test_what_a_damaged_record_said_needs_a_witness(site: Site) -> None:
    document, web, db, _ = appended(site)
    site.file.write_bytes(document + web.replace(b"8-11", b"8-13") + db)
    done = " ".join(site.repair("--yes").output.split())
    assert "shop/web-0/web: CPUs 8-13, from the damaged file, which nothing else confirms" in done
    assert "a sound record has CPUs 8-9" in done
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-9"}


def test_a_record_that_was_being_written_is_no_damage(site: Site) -> None:
    appended(site)
    cut(site)
    assert site.repair().output == f"{site.file}: nothing to repair\n"
    assert site.promises() == {"u1/db": "2-5", "u2/web": "8-11"}


def test_an_older_release_reads_what_was_repaired(site: Site) -> None:
    document, *records = appended(site)
    site.file.write_bytes(document + b"noise\n" + b"".join(records))
    assert site.repair("--yes").exit_code == 0
    assert json.loads(site.file.read_bytes())["version"] == 3


def test_as_a_process(site: Site) -> None:
    site.save(state(), replace(state(), pods={}))
    cut(site)
    words = [
        sys.executable,
        "-m",
        "nri_plugin",
        "state",
        "repair",
        "--state-dir",
        str(site.file.parent),
        "--yes",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert site.promises() == {"u1/db": "2-3", "u2/web": "8-9"}
