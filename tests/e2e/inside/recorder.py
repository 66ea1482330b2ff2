#!/usr/bin/python3 -SE
"""An OCI runtime that notes the cpuset it is given, takes it away and lets runc do the rest.

With it a real container runtime places containers on a machine that does not exist: CPU 300 and NUMA node 30 are as good
as any. For every container it also makes a cgroup directory, as cgroup v2 would show it, in a tree of plain files: the
agent's cgroup root. `cpuset.*.effective` are second names of the values, for no kernel keeps them.

It is called by the runtime in place of runc, so it takes runc's arguments. Standard library only; it starts for every
call, so it imports little.
"""

import json
import os
import sys

RECORD = "/run/lab/oci.jsonl"
TREE = "/run/lab/cgroup"
_RUNC = "/usr/bin/runc"
_VALUES = ("cpuset.cpus", "cpuset.mems")


def make_cgroup(path: str, **values: str) -> None:
    """Make one directory of the tree with everything above it; those above have no cpuset of their own."""
    made = TREE
    for part in [*path.strip("/").split("/")]:
        made = os.path.join(made, part)
        if not os.path.isdir(made):
            os.mkdir(made)
            _fill(made)
    for name in _VALUES:
        _write(os.path.join(made, name), values.get(name.rpartition(".")[2], ""))


def make_tree() -> None:
    """Make the root of the tree, as it looks before any pod has run."""
    os.makedirs(TREE)
    _fill(TREE)


def main(arguments: list[str]) -> None:
    """Do what is noted above for `create`, `update` and `delete`; everything else is runc's alone."""
    if "create" in arguments:
        _create(arguments)
    elif "update" in arguments:
        _update(arguments)
    elif "delete" in arguments:
        _delete(arguments[-1])
    os.execv(_RUNC, ["runc", *arguments])


def _create(arguments: list[str]) -> None:
    path = os.path.join(arguments[arguments.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    linux = spec["linux"]
    given = _take(linux.setdefault("resources", {}))
    make_cgroup(linux["cgroupsPath"], **given)
    _note("create", arguments[-1], cgroup=linux["cgroupsPath"], **given)
    with open(path, "w") as file:
        json.dump(spec, file)


def _update(arguments: list[str]) -> None:
    resources = json.load(sys.stdin)
    given = _take(resources)
    _note("update", arguments[-1], **given)
    for name in _VALUES:
        if given[name.rpartition(".")[2]]:
            _write(os.path.join(_directory_of(arguments[-1]), name), given[name.rpartition(".")[2]])
    reader, writer = os.pipe()
    os.write(writer, json.dumps(resources).encode())
    os.close(writer)
    os.dup2(reader, 0)


def _delete(container: str) -> None:
    """Remove the container's directory; the pods' directories stay, as a runtime leaves them."""
    directory = _directory_of(container)
    if os.path.isdir(directory):
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def _take(resources: dict[str, dict[str, str]]) -> dict[str, str]:
    cpu = resources.setdefault("cpu", {})
    return {"cpus": cpu.pop("cpus", ""), "mems": cpu.pop("mems", "")}


def _directory_of(container: str) -> str:
    with open(RECORD) as file:
        notes = [json.loads(line) for line in file]
    path = next(
        (note["cgroup"] for note in notes if note["id"] == container and note["call"] == "create"), "none"
    )
    return os.path.join(TREE, path.strip("/"))


def _note(call: str, container: str, **values: str) -> None:
    line = json.dumps({"call": call, "id": container, **values}) + "\n"
    with open(RECORD, "a") as file:
        file.write(line)


def _fill(directory: str) -> None:
    for name in _VALUES:
        _write(os.path.join(directory, name), "")
        os.link(os.path.join(directory, name), os.path.join(directory, f"{name}.effective"))
    for name in ("cgroup.procs", "cgroup.subtree_control"):
        _write(os.path.join(directory, name), "")
    _write(os.path.join(directory, "cgroup.controllers"), "cpuset cpu io memory pids\n")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(descriptor, text.encode() + b"\n" if text else b"\n")
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
