"""One scenario on a real runtime: steps are done over CRI, and what came of them is read from the kernel."""

import contextlib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cri import CRIError
from .foreign import frozen, write_as
from .kernel_side import held_apart, judge, limit_pod, spin
from .looking import anonymous_nodes, caches_of, memory_bytes
from .machine_devices import DeviceFinder
from .node import Node, Pod
from .observe import CGROUPS, format_list, node_cpus, parse_list, parse_mask
from .pods import ContainerSpec, PodSpec
from .report import tell
from .waiting import wait_for
from .write_watch import WriteWatch

_SETTLES_S = 25
_CPUS = Path("/sys/devices/system/cpu")
_WITNESSES = Path("/run/lab/witnesses")
_PAGE_BYTES = 2 << 20
_AMOUNTS = re.compile(r"[\d.]+[KMG]i\b")  # of memory: a kernel keeps some for itself

Json = dict[str, Any]


@dataclass
class Player:
    """Plays the steps of one plan on one node; every container's key is `NAMESPACE/POD/CONTAINER`."""

    node: Node
    plan: Json
    pods: dict[str, Pod] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    _serial: int = 0
    _judged: set[str] = field(default_factory=set)  # refusals that were compared

    def __post_init__(self) -> None:
        self._finder = DeviceFinder(self.plan["devices"])

    # ------------------------------------------------------------------ a step

    def play(self, step: Json) -> None:
        """Do it, wait until the picture is the wanted one, judge."""
        began = time.monotonic()
        getattr(self, f"_do_{step['do']}")(step)
        wanted = step.get("wanted")
        seen = self._picture()
        if wanted is not None and step["do"] != "say":
            seen = self._settled(wanted)
            self._compare(step, wanted, seen)
        if step["do"] == "expect":
            self._expect(step)
        tell("step", scenario=self.plan["name"], line=step["line"], do=step["do"], seen=seen,
             seconds=round(time.monotonic() - began, 2))  # fmt: skip

    def leave(self) -> None:
        """Remove every pod, whatever state it is in."""
        for key in [*self.pods]:
            with contextlib.suppress(CRIError):
                self._remove_pod(key)
        if (_CPUS / "offline").read_text().strip():
            _set_online(parse_list((_CPUS / "present").read_text()))

    def running(self) -> dict[str, str]:
        """Ids of running containers by key."""
        return {
            f"{key}/{name}": pod.ids[name] for key, pod in self.pods.items() for name in sorted(pod.running)
        }

    # ------------------------------------------------------------------- steps

    def _do_say(self, step: Json) -> None:
        pass

    def _do_run(self, step: Json) -> None:
        given = step["pod"]
        key = f"{given['namespace']}/{given['name']}"
        spec = self._spec(given, step)
        pod = self.pods[key] = self.node.sandbox(spec)
        limit_pod(self.node, pod)
        init = {each["name"] for each in given["init"]}
        for container in spec.containers:
            full = f"{key}/{container.name}"
            self.refused.pop(full, None)
            self._judged.discard(full)
            try:
                self.node.create(pod, container)
            except CRIError as error:
                self.refused[full] = error.reason
                if container.name in init:
                    return
                continue
            if container.name in init or step["start"]:
                self._start(pod, full, container)
            if container.name in init:
                self._stop(pod, container.name)

    def _do_start(self, step: Json) -> None:
        pod, names = self._named(step["target"])
        for name in names:
            spec = next(each for each in pod.spec.containers if each.name == name)
            self._start(pod, f"{'/'.join(step['target'].split('/')[:2])}/{name}", spec)

    def _do_stop(self, step: Json) -> None:
        pod, names = self._named(step["target"])
        for name in names:
            self._stop(pod, name)
        if step["target"].count("/") == 1:
            self.node.cri.call("StopPodSandbox", pod_sandbox_id=pod.sandbox)

    def _do_remove(self, step: Json) -> None:
        target = step["target"]
        if target.count("/") == 1:
            self._remove_pod(target)
            return
        pod, (name,) = self._named(target)
        self.node.end(pod, name)

    def _do_update(self, step: Json) -> None:
        pod, (name,) = self._named(step["target"])
        try:
            self.node.cri.call(
                "UpdateContainerResources", container_id=pod.ids[name], linux=step["resources"]
            )
        except CRIError as error:
            self.refused[step["target"]] = error.reason

    def _do_restart(self, step: Json) -> None:
        if "writes" not in step:
            self._restart(step)
            return
        watch = WriteWatch(*CGROUPS.glob("kubepods*"))
        self.node.expect("the watch sees every container", len(watch) > len(self.running()), len(watch))
        self._restart(step)
        written = watch.writes()
        self.node.expect(
            f"line {step['line']}: at most {step['writes']} writes to cpuset files",
            len(written) <= step["writes"],
            written[:5],
        )
        watch.close()

    def _restart(self, step: Json) -> None:
        agent, runtime = self.node.agent, self.node.runtime
        if step["part"] == "agent":
            agent.kill()
            if not step["is_down"]:
                agent.start()
            return
        joined = agent.times_joined()
        runtime.stop()
        if not step["is_down"]:
            runtime.start()
            agent.wait_until_joined(joined)

    def _do_drift(self, step: Json) -> None:
        """Somebody else writes while the agent stands still: first it is seen to happen, then it is put right."""
        pod, (name,) = self._named(step["target"])
        identity = pod.ids[name]
        before, wanted = self.node.observe(identity).allowed_cpus, parse_list(step["cpus"])
        with frozen(self.node.agent.pid):
            write_as(step["by"], identity, self.node, step["cpus"])
            seen = self.node.observe(identity)
            happens = f"line {step['line']}: the drift happens"
            self.node.equal(happens, format_list(seen.file_cpus), format_list(wanted))
            self.node.expect(happens, seen.allowed_cpus != before, format_list(seen.allowed_cpus))
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            wait_for(
                lambda: self.node.observe(identity).allowed_cpus == before, _SETTLES_S, "it is put right"
            )
        after = self.node.observe(identity).allowed_cpus
        self.node.equal(f"line {step['line']}: it is put right", format_list(after), format_list(before))
        self.node.figure(
            f"seconds until drift by {step['by']} was put right", round(time.monotonic() - began, 2)
        )

    def _do_second(self, step: Json) -> None:
        status, said = self.node.agent.another()
        self.node.expect(
            f"line {step['line']}: a second agent ends and says why",
            status not in (0, None) and "another agent" in said,
            f"status {status}: {said[-300:]}",
        )

    def _do_release(self, step: Json) -> None:
        """The agent ends and everything is given back; no cgroup holds CPUs apart from the others after that."""
        self.node.agent.stop()
        status, said = self.node.agent.release()
        where = f"line {step['line']}: nri-pin release"
        self.node.expect(f"{where} gives everything back", status == 0, f"status {status}: {said[-300:]}")
        self.node.equal(f"{where} leaves no CPU apart", held_apart(), {})

    def _do_spin(self, step: Json) -> None:
        pod, (name,) = self._named(step["target"])
        spin(self.node, f"line {step['line']}", pod, name, step["on"])

    def _do_online(self, step: Json) -> None:
        _set_online(parse_list(step["cpus"]))

    def _do_expect(self, step: Json) -> None:
        pass

    # ------------------------------------------------------------------- parts

    def _spec(self, given: Json, step: Json) -> PodSpec:
        key = f"{given['namespace']}/{given['name']}"
        devices = (step.get("wanted") or {}).get("devices", {})
        containers = [
            self._container(each, devices.get(f"{key}/{each['name']}", {}))
            for each in [*given["init"], *given["containers"]]
        ]
        return PodSpec(
            given["name"],
            given["qos"],
            tuple(containers),
            given["namespace"],
            given["labels"],
            given["annotations"],
        )

    def _container(self, given: Json, devices: dict[str, list[str]]) -> ContainerSpec:
        pages = given["hugepages"].get("2MB", 0) // _PAGE_BYTES
        place = _WITNESSES / f"{self._serial}"
        self._serial += 1
        place.mkdir(parents=True, exist_ok=True)
        score = 1000 - 1000 * given["request_bytes"] // memory_bytes()
        environment, files = self._finder.delivered(devices)
        return ContainerSpec(
            name=given["name"],
            cpu_milli=given["cpu_milli"],
            limit_milli=given["limit_milli"],
            memory_bytes=given["memory_bytes"],
            score=min(max(score, 3), 999),
            hugepages=given["hugepages"],
            environment=(*given["env"], *environment),
            devices=tuple(files),
            command=("/bin/hoard", *["page"] * pages) if pages else ("/bin/witness",),
            mounts={"/out": str(place)},
        )

    def _start(self, pod: Pod, key: str, spec: ContainerSpec) -> None:
        """Start it, and judge where its first instruction ran and where its pages are."""
        self.node.start(pod, spec.name)
        pid = self.node.pid(pod.ids[spec.name])
        answer = Path(spec.mounts["/out"]) / "affinity"
        if spec.command == ("/bin/witness",):
            wait_for(lambda: answer.exists() and answer.stat().st_size > 0, 20, f"{key} has spoken")
            first = parse_mask(answer.read_bytes())
            now = self.node.observe(pod.ids[spec.name]).allowed_cpus
            self.node.equal(
                f"the first instruction of {key} ran where it stays", format_list(first), format_list(now)
            )
            answer.unlink()
        else:
            wait_for(lambda: len(spec.command) - 1 == _huge_pages(pid), 20, f"{key} has its huge pages")
        seen = self.node.observe(pod.ids[spec.name])
        pages = anonymous_nodes(pid)
        self.node.expect(
            f"the pages of {key} are on its memory nodes",
            pages <= seen.allowed_mems,
            f"on {format_list(pages)}, allowed {format_list(seen.allowed_mems)}",
        )

    def _stop(self, pod: Pod, name: str) -> None:
        self.node.cri.call("StopContainer", container_id=pod.ids[name], timeout=0)
        pod.running.discard(name)

    def _remove_pod(self, key: str) -> None:
        self.node.remove(self.pods.pop(key))

    def _named(self, target: str) -> tuple[Pod, list[str]]:
        pod = self.pods["/".join(target.split("/")[:2])]
        name = target.split("/")[2:]
        return pod, name or list(pod.ids)

    # ----------------------------------------------------------------- judging

    def _picture(self) -> Json:
        found = {}
        for key, identity in self.running().items():
            seen = self.node.observe(identity)
            found[key] = {"cpus": format_list(seen.allowed_cpus), "mems": format_list(seen.allowed_mems)}
        return {"containers": found, "refused": dict(self.refused)}

    def _settled(self, wanted: Json) -> Json:
        with contextlib.suppress(TimeoutError):
            wait_for(
                lambda: self._picture()["containers"] == wanted["containers"], _SETTLES_S, "pictures agree"
            )
        return self._picture()

    def _compare(self, step: Json, wanted: Json, seen: Json) -> None:
        where = f"line {step['line']}"
        for key in sorted({*wanted["containers"], *seen["containers"]}):
            self.node.equal(
                f"{where}: {key} is where the embedded runtime has it",
                seen["containers"].get(key, "not running"),
                wanted["containers"].get(key, "not running"),
            )
        for key in sorted({*wanted["refused"], *seen["refused"]} - self._judged):
            self._judged.add(key)
            words, ours = wanted["refused"].get(key, "(not refused)"), seen["refused"].get(key, "")
            words = words.partition(";")[
                0
            ]  # what follows is advice, which may draw on more than containerd tells
            holds = _AMOUNTS.sub("#", words) in _AMOUNTS.sub("#", ours)
            self.node.expect(
                f"{where}: {key} is refused in the same words", holds, f"seen {ours}, wanted {words}"
            )

    def _expect(self, step: Json) -> None:
        where, target = f"line {step['line']}", step["target"]
        if "refused" in step:
            reason = self.refused.get(target, "")
            self.node.expect(
                f"{where}: the CRI error says {step['refused']}", step["refused"] in reason, reason
            )
            return
        identity = self.running().get(target)
        self.node.expect(f"{where}: {target} runs", identity is not None, self.refused.get(target, ""))
        if identity is None:
            return
        seen = self.node.observe(identity)
        cpus = seen.allowed_cpus
        nodes = [number for number, own in node_cpus().items() if own & cpus]
        found = {
            "cpus": format_list(cpus),
            "mems": format_list(seen.allowed_mems),
            "numa_nodes": len(nodes),
            "caches": caches_of(cpus),
        }
        for name, value in found.items():
            if name in step:
                self.node.equal(f"{where}: {name} of {target}", value, step[name])
        self.node.equal(
            f"{where}: cpuset.cpus.effective of {target} says what /proc says", seen.effective_cpus, cpus
        )
        if "kernel" in step:
            pod, (name,) = self._named(target)
            judge(self.node, where, pod, name, step["kernel"])
        if step.get("exclusive"):
            self.node.equal(f"{where}: {target} has CPUs to itself", len(cpus), step["exclusive"])
            others = {key for key, other in self.running().items() if other != identity
                      and self.node.observe(other).allowed_cpus & cpus}  # fmt: skip
            self.node.equal(f"{where}: nobody shares the CPUs of {target}", others, set())


def _huge_pages(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    except FileNotFoundError:
        return -1  # it has ended: it could not have its pages
    huge = [line for line in lines if " huge " in f"{line} "]
    return sum(int(number) for line in huge for number in re.findall(r" anon=(\d+)", line))


def _set_online(wanted: set[int]) -> None:
    """Exactly these from now on; a CPU without a switch is always online."""
    for cpu in sorted(parse_list((_CPUS / "present").read_text())):
        switch = _CPUS / f"cpu{cpu}" / "online"
        if switch.exists() and switch.read_text().strip() != str(int(cpu in wanted)):
            switch.write_text(str(int(cpu in wanted)))
