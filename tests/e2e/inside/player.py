"""One scenario on a real runtime: steps are done over CRI, and what came of them is read from the kernel."""

import contextlib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cri import CRIError
from .expecting import expect
from .facts_server import FactsServer
from .foreign import frozen, give_kubepods, hold_apart, is_out_of_reach, somebody_s_partition, write_as
from .kernel_side import expect_nothing_apart, judge, limit_pod, spin
from .looking import anonymous_nodes, memory_bytes
from .machine_devices import DeviceFinder
from .node import Node, Pod
from .noise_side import measure
from .observe import CGROUPS, format_list, machine_cpus, parse_list, parse_mask
from .pods import ContainerSpec, PodSpec
from .report import tell
from .waiting import wait_for
from .write_watch import WriteWatch

_SETTLES_S = 25
_SWEPT_S = 13.0
"""What follows from a restart is written a moment after it, and everything is looked at each ten seconds."""
_REMOVALS = 3
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
    facts: FactsServer | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    _serial: int = 0
    _judged: set[str] = field(default_factory=set)  # refusals that were compared
    _heard: int = 0  # how far earlier steps have asked for the agent's log

    def __post_init__(self) -> None:
        self.ever_refused: set[str] = set()
        self.sandboxes: set[str] = set()
        self.finder = DeviceFinder(self.plan["devices"])

    # ------------------------------------------------------------------ a step

    def play(self, step: Json) -> None:
        """Do it, wait until the picture is the wanted one, judge."""
        began = time.monotonic()
        getattr(self, f"_do_{step['do']}")(step)
        wanted = step.get("wanted")
        seen = self._picture()
        unmended = step["do"] == "drift" and not self.node.agent.pid  # what a kernel makes of that is its own
        if wanted is not None and step["do"] != "say" and not unmended:
            seen = self._settled(wanted)
            self._compare(step, wanted, seen)
        if step["do"] == "expect":
            expect(self, step)
        tell("step", scenario=self.plan["name"], line=step["line"], do=step["do"], seen=seen,
             seconds=round(time.monotonic() - began, 2))  # fmt: skip

    def leave(self) -> None:
        """Remove every pod, whatever state it is in, also what an earlier scenario could not be rid of."""
        with contextlib.suppress(OSError):
            hold_apart("member", "")
        if (_CPUS / "offline").read_text().strip():
            _set_online(parse_list((_CPUS / "present").read_text()))
        self.pods.clear()
        left = [pod for pod in [*self.node.pods] if not self._is_gone(pod)]
        self.node.equal("every pod could be removed", [pod.spec.name for pod in left], [])
        if any(step["do"] == "kubepods" for step in self.plan["steps"]):
            give_kubepods(self.node, "")  # a partition beside it needs a cgroup that names no CPUs

    def _is_gone(self, pod: Pod) -> bool:
        for _ in range(_REMOVALS):
            with contextlib.suppress(CRIError):
                self.node.remove(pod)
                return True
        return False

    def judge_what_is_left(self) -> None:
        """With the last pod nothing is held apart any more; there may be no agent by now, and it may need time."""
        for key in [*self.pods]:
            self._remove_pod(key)
        hold_apart("member", "")
        expect_nothing_apart(self.node, "at the end")

    def running(self) -> dict[str, str]:
        """Ids of running containers by key."""
        return {
            f"{key}/{name}": pod.ids[name] for key, pod in self.pods.items() for name in sorted(pod.running)
        }

    # ------------------------------------------------------------------- steps

    def _do_say(self, step: Json) -> None:
        pass

    def refuse(self, key: str, error: CRIError) -> None:
        """Note why a container was refused."""
        self.refused[key] = error.reason
        self.ever_refused.add(key)

    def _do_run(self, step: Json) -> None:
        given = step["pod"]
        key = f"{given['namespace']}/{given['name']}"
        spec = self._spec(given, step)
        if self.facts is not None and "facts" in step:
            self.facts.tell(key, spec.uid, step["facts"])
        pod = self.pods[key] = self.node.sandbox(spec)
        self.sandboxes.add(pod.sandbox)
        limit_pod(self.node, pod)
        init = {each["name"] for each in given["init"]}
        ends = init - {*given["sidecars"]}
        for container in spec.containers:
            full = f"{key}/{container.name}"
            self.refused.pop(full, None)
            self._judged.discard(full)
            try:
                self.node.create(pod, container)
            except CRIError as error:
                self.refuse(full, error)
                if container.name in init:
                    return
                continue
            if container.name in init or step["start"]:
                self._start(pod, full, container)
            if container.name in ends:
                self._stop(pod, container.name)

    def _do_start(self, step: Json) -> None:
        pod, names = self.named(step["target"])
        for name in names:
            spec = next(each for each in pod.spec.containers if each.name == name)
            self._start(pod, f"{'/'.join(step['target'].split('/')[:2])}/{name}", spec)

    def _do_stop(self, step: Json) -> None:
        pod, names = self.named(step["target"])
        for name in names:
            self._stop(pod, name)
        if step["target"].count("/") == 1:
            self.node.cri.call("StopPodSandbox", pod_sandbox_id=pod.sandbox)

    def _do_remove(self, step: Json) -> None:
        target = step["target"]
        if target.count("/") == 1:
            self._remove_pod(target)
            return
        pod, (name,) = self.named(target)
        self.node.end(pod, name)

    def _do_update(self, step: Json) -> None:
        pod, (name,) = self.named(step["target"])
        try:
            self.node.cri.call(
                "UpdateContainerResources", container_id=pod.ids[name], linux=step["resources"]
            )
        except CRIError as error:
            self.refuse(step["target"], error)

    def _do_restart(self, step: Json) -> None:
        if "writes" not in step:
            self._restart(step)
            return
        watch = WriteWatch(*CGROUPS.glob("kubepods*"))
        self.node.expect("the watch sees every container", len(watch) > len(self.running()), len(watch))
        self._restart(step)
        time.sleep(_SWEPT_S)
        written = watch.writes()
        self.node.expect(
            f"line {step['line']}: at most {step['writes']} writes to cpuset and quota files",
            len(written) <= step["writes"],
            written[:5],
        )
        watch.close()

    def _restart(self, step: Json) -> None:
        agent, runtime = self.node.agent, self.node.runtime
        if step["part"] == "agent":
            agent.kill()
            agent.write_config(**step.get("config", {}))
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
        pod, (name,) = self.named(step["target"])
        identity = pod.ids[name]
        before = self.node.observe(identity).allowed_cpus
        with frozen(self.node.agent.pid):
            write_as(step["by"], identity, self.node, step["cpus"])
            if step["by"] == "daemon-reload" and not self.node.runtime.systemd:
                limit_pod(self.node, pod)  # what systemd would do with it
            self._see_drift(step, identity, before)
            for key, said in step.get("meanwhile", {}).items():
                owner, (its,) = self.named(key)
                judge(self.node, f"line {step['line']}: meanwhile", owner, its, said)
        if not self.node.agent.pid or is_out_of_reach(step["by"], identity, self.node):
            return
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

    def _see_drift(self, step: Json, identity: str, before: set[int]) -> None:
        seen = self.node.observe(identity)
        if is_out_of_reach(step["by"], identity, self.node):
            reach = f"line {step['line']}: systemd does not reach the processes below crun's scope"
            self.node.equal(reach, format_list(seen.allowed_cpus), format_list(before))
            return
        happens = f"line {step['line']}: the drift happens"
        self.node.equal(happens, format_list(seen.file_cpus), format_list(parse_list(step["cpus"])))
        self.node.expect(happens, seen.allowed_cpus != before, format_list(seen.allowed_cpus))

    def _do_second(self, step: Json) -> None:
        waited, said = self.node.agent.another()
        self.node.expect(f"line {step['line']}: a second agent waits for the first", waited, said[-300:])

    def _do_release(self, step: Json) -> None:
        """The agent ends and everything is given back; no cgroup holds CPUs apart from the others after that."""
        self.node.agent.stop()
        status, said = self.node.agent.release()
        where = f"line {step['line']}: nri-pin release"
        self.node.expect(f"{where} gives everything back", status == 0, f"status {status}: {said[-300:]}")
        expect_nothing_apart(self.node, where)

    def _do_foreign(self, step: Json) -> None:
        """The kernel takes it, and then nobody else has these CPUs; the agent may take its time to follow."""
        hold_apart(step["kind"], step["cpus"])
        where = f"line {step['line']}: somebody's partition"
        self.node.equal(f"{where} is made", somebody_s_partition(), step["kind"])
        others = parse_list((CGROUPS / "cpuset.cpus.effective").read_text())
        self.node.equal(f"{where} has its CPUs", others & parse_list(step["cpus"]), set())

    def _do_kubepods(self, step: Json) -> None:
        """The kernel takes it, and doctor names the cgroup as long as it has fewer CPUs than the machine."""
        top, cpus = give_kubepods(self.node, step["cpus"]), parse_list(step["cpus"])
        where = f"line {step['line']}: {top.name}"
        self.node.equal(
            f"{where} has these CPUs", parse_list((top / "cpuset.cpus.effective").read_text()), cpus
        )
        said = self.node.agent.doctor()[1]
        named = f"{top.name} reaches only CPUs {format_list(cpus)}: {format_list(machine_cpus() - cpus)} cannot be used"
        self.node.expect(
            f"{where} is named by doctor where it is narrow",
            (named in said) == (cpus < machine_cpus()) == (f"{top.name} reaches only" in said),
            said,
        )

    def _do_logged(self, step: Json) -> None:
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: self._said(step["text"]) > 0, _SETTLES_S, "the agent has said it")
        end = self._said(step["text"])
        last = self.node.agent.lines()[-3:]
        self.node.expect(f"line {step['line']}: the agent's log says {step['text']}", end > 0, last)
        self._heard = end or self._heard

    def _said(self, text: str) -> int:
        """Where `text` ends in the part of the log that was not asked for yet; 0 where it is not there."""
        place = "\n".join(self.node.agent.lines()).find(text, self._heard)
        return place + len(text) if place >= 0 else 0

    def _do_spin(self, step: Json) -> None:
        pod, (name,) = self.named(step["target"])
        spin(self.node, f"line {step['line']}", pod, name, step["on"])

    def _do_measure(self, step: Json) -> None:
        pod, (name,) = self.named(step["target"])
        measure(self.node, f"line {step['line']}", pod, name, step["load"])

    def _do_online(self, step: Json) -> None:
        _set_online(parse_list(step["cpus"]))

    def _do_expect(self, step: Json) -> None:
        pass

    # ------------------------------------------------------------------- parts

    def _spec(self, given: Json, step: Json) -> PodSpec:
        key = f"{given['namespace']}/{given['name']}"
        devices = (step.get("wanted") or {}).get("devices", {})
        whole = given.get("whole", {})
        containers = [
            self._container(_limited(each, whole), devices.get(f"{key}/{each['name']}", {}))
            for each in [*given["init"], *given["containers"]]
        ]
        return PodSpec(
            given["name"],
            given["qos"],
            tuple(containers),
            given["namespace"],
            given["labels"],
            given["annotations"],
            limit_milli=whole.get("limit_milli", 0),
        )

    def _container(self, given: Json, devices: dict[str, list[str]]) -> ContainerSpec:
        pages = given["hugepages"].get("2MB", 0) // _PAGE_BYTES
        place = _WITNESSES / f"{self._serial}"
        self._serial += 1
        place.mkdir(parents=True, exist_ok=True)
        score = 1000 - 1000 * given["request_bytes"] // memory_bytes()
        environment, files = self.finder.delivered(devices)
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

    def named(self, target: str) -> tuple[Pod, list[str]]:
        """The pod, and the names of its containers that are meant."""
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


def _huge_pages(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    except FileNotFoundError:
        return -1  # it has ended: it could not have its pages
    huge = [line for line in lines if " huge " in f"{line} "]
    return sum(int(number) for line in huge for number in re.findall(r" anon=(\d+)", line))


def _limited(given: Json, whole: Json) -> Json:
    """A container without a limit gets that of its pod, if the pod has resources of its own."""
    return {**given, **{name: given[name] or limit for name, limit in whole.items()}}


def _set_online(wanted: set[int]) -> None:
    """Exactly these from now on; a CPU without a switch is always online."""
    for cpu in sorted(parse_list((_CPUS / "present").read_text())):
        switch = _CPUS / f"cpu{cpu}" / "online"
        if switch.exists() and switch.read_text().strip() != str(int(cpu in wanted)):
            switch.write_text(str(int(cpu in wanted)))
