"""A guest that hangs, ends or refuses, played by a program in QEMU's place: what is said of it, and what is left."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from tests.e2e.lab import guest as guest_module
from tests.e2e.lab import session as session_module
from tests.e2e.lab.guest import Guest, QemuRefused, boot
from tests.e2e.lab.guest_recipe import GuestRecipe
from tests.e2e.lab.guest_server import Server
from tests.e2e.lab.prepare import Prepared
from tests.e2e.lab.qemu_machine import guest_machine
from tests.e2e.lab.ready import KERNEL_FROM, Lab
from tests.e2e.lab.running import Running
from tests.e2e.lab.session import booted, column_named
from tests.e2e.lab.shell import Interrupted, LabError

_FAKE = """#!{python} -S
import os, re, socket, sys, time
words = " ".join(sys.argv)
console = re.search("file:([^ ]+)", words)[1]
def up():
    port = socket.socket(socket.AF_UNIX)
    port.connect(re.search("port,path=([^ ]+)", words)[1])
    port.sendall(b'{{"ready": "1.5"}}\\n')
    return port.makefile("rwb", buffering=0)
def say(text):
    open(console, "a").write(text)
{body}
"""
_ANSWERS = """
port = up()
port.readline()
port.write(b'{"rc": 255, "line": "No space left on device"}\\n')
port.readline()
port.write(b'{"line": "tar: not found"}\\n{"rc": 2}\\n')
port.readline()
"""


@pytest.fixture
def recipe(tmp_path: Path) -> GuestRecipe:
    machine = guest_machine("pack:1 numa:1 l3:1 core:2 pu:1", "m")
    return GuestRecipe(tmp_path / "disk", tmp_path / "kernel", machine, boot_limit_s=30)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "type[FakeQemu]":
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    FakeQemu.folder = folder
    return FakeQemu


def _lab(place: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab whose disks nobody reads, and whose accelerator is known."""
    (place / "payload").write_text("x")
    monkeypatch.setattr(session_module, "accelerator", lambda _lab, _root: "tcg")
    prepared = Prepared("sid", place, place / "payload", "key")
    return Lab(place, {"sid": prepared}, {("sid", KERNEL_FROM): (place / "disk", place / "kernel")})


class FakeQemu:
    """Puts a program in QEMU's place; its body runs with `up()` and `say()`."""

    folder: Path

    @classmethod
    def does(cls, body: str) -> None:
        program = cls.folder / "qemu-system-x86_64"
        program.write_text(_FAKE.format(python=sys.executable, body=body))
        program.chmod(0o755)


def test_the_words_of_a_qemu_that_refuses_are_told_at_once_and_only_once(
    recipe: GuestRecipe, fake: type[FakeQemu], tmp_path: Path
) -> None:
    fake.does('sys.exit("invalid accelerator nosuch")')
    with pytest.raises(QemuRefused) as caught:
        boot(recipe, tmp_path / "console.log")
    assert "QEMU ended with status 1" in str(caught.value)
    assert "invalid accelerator nosuch" in str(caught.value)
    assert not (tmp_path / "console-2.qemu").exists()


def test_an_absent_qemu_is_named(
    recipe: GuestRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("setpriv", "nice"):
        found = subprocess.run(["which", name], check=True, capture_output=True, text=True).stdout.strip()
        (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(QemuRefused, match="qemu-system-x86_64"):
        boot(recipe, tmp_path / "console.log")


def test_a_guest_that_dies_while_booting_is_tried_twice_and_both_consoles_stay(
    recipe: GuestRecipe, fake: type[FakeQemu], tmp_path: Path
) -> None:
    fake.does("say('Kernel panic'); port = socket.socket(socket.AF_UNIX)\n"
              "port.connect(re.search('port,path=([^ ]+)', words)[1]); sys.exit(3)")  # fmt: skip
    with pytest.raises(LabError, match="QEMU ended with status 3; its console ends with: Kernel panic"):
        boot(recipe, tmp_path / "console.log")
    assert (tmp_path / "console.log").exists()
    assert (tmp_path / "console-2.log").exists()


def test_a_guest_that_dies_at_work_is_reported_with_its_console(
    recipe: GuestRecipe, fake: type[FakeQemu], tmp_path: Path
) -> None:
    fake.does("port = up(); port.readline(); say('Out of memory'); sys.exit(0)")
    with Guest(recipe, tmp_path / "console.log") as guest, pytest.raises(LabError, match="Out of memory"):
        guest.run("true")


def test_why_a_guest_ended_is_not_hidden_by_logs_that_cannot_be_fetched(
    fake: type[FakeQemu], tmp_path: Path, recipe: GuestRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.does("port = up()\nport.readline(); port.write(b'{\"rc\": 0}\\n')\n"
              "port.readline(); port.write(b'{\"rc\": 0}\\n')\nport.readline(); time.sleep(60)")  # fmt: skip
    lab = _lab(tmp_path, monkeypatch)

    def hang() -> None:
        with booted(recipe.machine, column_named("containerd-2"), lab, tmp_path / "run") as guest:
            guest._connection.settimeout(0.05)
            guest.run("sleep 1000")

    with pytest.raises(LabError, match="said nothing"):
        hang()


def test_a_guest_that_cannot_write_or_run_is_believed(
    recipe: GuestRecipe, fake: type[FakeQemu], tmp_path: Path
) -> None:
    fake.does(_ANSWERS)
    (tmp_path / "file").write_text("x")
    with Guest(recipe, tmp_path / "console.log") as guest:
        with pytest.raises(LabError, match="could not write /run/x: No space left"):
            guest.put(tmp_path / "file", "/run/x")
        with pytest.raises(LabError, match="packing /out ended with status 2 in the guest: tar: not found"):
            guest.get_directory("/out", tmp_path / "out")


def test_a_directory_goes_into_a_guest_packed(
    recipe: GuestRecipe, fake: type[FakeQemu], tmp_path: Path
) -> None:
    fake.does(
        "import base64, json\nport = up()\nfile = open(console + '.packed', 'wb')\n"
        "file.write(base64.b64decode(json.loads(port.readline())['data'])); file.close()\n"
        "port.write(b'{\"rc\": 0}\\n')\nopen(console + '.run', 'wb').write(port.readline())\n"
        "port.write(b'{\"rc\": 0}\\n')\nport.readline()"
    )
    (tmp_path / "state").mkdir()
    (tmp_path / "state/file").write_text("x")
    console = tmp_path / "console.log"
    with Guest(recipe, console) as guest:
        guest.put_directory(tmp_path / "state", "/out/before")
    with tarfile.open(f"{console}.packed") as packed:
        assert "./file" in packed.getnames()
    assert "tar -C /out/before -xf /run/packed" in Path(f"{console}.run").read_text()


def test_an_interruption_ends_guests_and_lets_none_start(
    recipe: GuestRecipe, fake: type[FakeQemu], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.does("port = up(); time.sleep(60)")
    ours = Running()
    monkeypatch.setattr(guest_module, "RUNNING", ours)
    with Guest(recipe, tmp_path / "console.log") as guest:
        ours.interrupt()
        with pytest.raises(Interrupted):
            guest.run("true")
    with pytest.raises(Interrupted):
        boot(recipe, tmp_path / "console.log")


def test_qemu_ends_with_the_command_that_started_it(fake: type[FakeQemu], tmp_path: Path) -> None:
    fake.does("port = up(); open(console + '.pid', 'w').write(str(os.getpid())); say('up'); port.readline()\n"
              "while True: time.sleep(1)")  # fmt: skip
    script = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from tests.e2e.lab.guest import Guest\nfrom tests.e2e.lab.guest_recipe import GuestRecipe\n"
        "from tests.e2e.lab.qemu_machine import guest_machine\n"
        "place = Path(sys.argv[1])\n"
        "guest = Guest(GuestRecipe(place, place, guest_machine('pack:1 core:2 pu:1', 'm')), place / 'c.log')\n"
        "while not (place / 'c.log').exists(): pass\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=False, timeout=60)
    pid = (tmp_path / "c.log.pid").read_text()
    with contextlib.suppress(ProcessLookupError):  # it was quicker than we
        ended = os.pidfd_open(int(pid))
        assert select.select([ended], [], [], 20)[0]
        os.close(ended)


def test_the_guest_s_server_ends_when_nobody_is_at_the_port() -> None:
    ours, theirs = socket.socketpair()
    server = Server(theirs.fileno())
    serving = threading.Thread(target=server.requests)
    serving.start()
    with ours, ours.makefile("rb") as port:
        ours.sendall(b'{"run": "echo it runs; exit 3"}\n')
        assert [port.readline(), port.readline()] == [b'{"line": "it runs"}\n', b'{"rc": 3}\n']
        ours.shutdown(socket.SHUT_WR)
    serving.join(20)
    assert not serving.is_alive()
    theirs.close()
