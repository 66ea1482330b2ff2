"""The life of one node: rounds in which pods come and go while faults happen; then quiet, and what everybody says; then nothing left.

`python -m tests.e2e.churn.life PLAN NUMBER`, in the node's namespaces.
"""

import http.client
import json
import random
import shutil
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.lab.progress import say

from .dumps import dump
from .faults import FAULTS, MIXED, NONE, REFUSED, UNMIXED, Faults
from .parts import STATIC_PODS, Parts
from .pod_kinds import KINDS, RESIZED_KINDS, STATIC_KINDS, Draw, Object, amounts, pod, request_milli
from .records import SCHEDULED, Notes, cpus, now
from .refused import CONFIG, ROUND_S, Refused

PODS = "/api/v1/namespaces/default/pods"
MOST_PODS, FEW_PODS = 18, 3
QUIET_S = 12.0
EMPTY_S = 60.0
_RESERVED_MEMORY = "250Mi"
_GATES = {"PodLevelResourceManagers": True, "PodLevelResources": True}
_MERGE = "application/strategic-merge-patch+json"


@dataclass
class Made:
    """A pod that was made here and not deleted."""

    kind: str
    spec: Object
    file: Path | None = None
    ended_at: float = 0.0
    made_at: float = field(default_factory=now)


class Life:
    """Args:
    plan: see `world.Plan`.
    number: of the node.
    """

    def __init__(self, plan: dict[str, Any], number: int) -> None:
        self.plan, self.number = plan, number
        self.name = f"node-{number}"
        folder = Path(plan["folder"]) / self.name
        self.cluster = ControlPlane(Path(plan["cluster"]), Path(plan["control"]))
        self.notes = Notes(folder)
        self.parts = Parts(
            self.name, number, self.cluster, self.notes,
            checkouts=[Path(one) for one in plan["checkouts"]], is_clocked="clock-jump" in plan["faults"] or MIXED in plan["faults"],
        )  # fmt: skip
        self.random = random.Random(f"{plan['seed']}/{number}")
        self.machine = self.parts.machine()
        reserved = cpus(self.machine["reserved"])
        self.cpus_by_node = [cpus(one) - reserved for one in self.machine["nodes"]]
        self.made: dict[str, Made] = {}
        self.leaving: list[tuple[float, int]] = []
        self.count = 0

    def live(self) -> None:
        """All rounds."""
        plan, folder = self.plan, self.notes.folder
        self.parts.boot()
        self.parts.load_images(folder)
        words = [self.name, plan["cluster"], plan["control"], folder]
        self.parts._start("watch", [sys.executable, "-P", "-m", "tests.e2e.churn.watch", *words])
        self.parts.start_proxy()
        kinds = plan["rounds"][self.number]
        for index, kind in enumerate(kinds):
            config = self.draw_config() | (CONFIG if kind == REFUSED else {})
            self.parts.use_config(config)
            if index:
                self.parts.end("agent")
                self.parts.start_agent()
            else:
                self.parts.start_all()
                self.parts.until(self._is_ready, "the kubelet is ready")
                # each new Node has a taint until a controller has seen that it is ready, and there is no controller
                self.ask("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}}, _MERGE)
            self.play(index, kind, config)
        for part in ("kubelet", "exporter", "agent"):
            self.parts.end(part)

    def draw_config(self) -> dict[str, Any]:
        """A configuration of nri-pin; what the plan fixes is not drawn."""
        draw = self.random
        config: dict[str, Any] = {
            "cpuManagerPolicy": "static", "reservedSystemCPUs": self.machine["reserved"],
            "topologyManagerPolicy": draw.choice(["single-numa-node", "single-numa-node", "restricted", "best-effort", "none"]),
            "topologyManagerScope": draw.choice(["container", "pod"]),
            "evictionHard": {"memory.available": _RESERVED_MEMORY}, "featureGates": _GATES,
        }  # fmt: skip
        shares = {"full-pcpus-only": 0.5, "prefer-align-cpus-by-uncorecache": 0.4}
        config["cpuManagerPolicyOptions"] = {
            name: "true" for name, share in shares.items() if draw.random() < share
        }
        if draw.random() < 0.3:
            config["memoryManagerPolicy"] = "Static"
            config["reservedMemory"] = [{"numaNode": 0, "limits": {"memory": _RESERVED_MEMORY}}]
        return config | self.plan["config"]

    def _is_ready(self) -> bool:
        node = self.cluster.found(f"/api/v1/nodes/{self.name}") or {}
        conditions = node.get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    # A round

    def play(self, index: int, kind: str, config: dict[str, Any]) -> None:
        """One round."""
        say(f"{self.name}: round {index}, {kind}: {short(config)}")
        self.notes.add("rounds", round=index, kind=kind, config=config, machine=self.machine)
        mixed = [name for name in FAULTS if name not in UNMIXED]
        kinds = {NONE: [], REFUSED: [], MIXED: mixed}.get(kind, [kind])
        faults = Faults(
            self.parts, kinds, f"{self.plan['seed']}/{self.number}/{index}", 2 if kind == MIXED else 1
        )
        try:
            self.churn(config, kind)
        finally:
            faults.stop()
        self.notes.add("rounds", round=index, quiet=True, failures=faults.failures)
        ends = time.monotonic() + QUIET_S
        while time.monotonic() < ends:
            time.sleep(2)
            self.reap()
        self.dump("quiet", index)
        took = self.empty()
        self.dump("empty", index)
        say(f"{self.name}: round {index} has ended, {self.count} pods so far, empty after {took:.0f} s")
        self.notes.add("rounds", round=index, end=True)

    def dump(self, what: str, index: int) -> None:
        """Twice, so that a change that is under way is told from a difference."""
        for _ in range(2):
            dump(what, self.parts, self.cluster, round=index)
            time.sleep(3)

    def churn(self, config: dict[str, Any], kind: str) -> None:
        """Pods come and go."""
        refused = Refused(self.name, self.ask, PODS) if kind == REFUSED else None
        seconds = ROUND_S if refused else self.plan["round_s"]
        draw = Draw(self.random, config, max(map(len, self.cpus_by_node)))
        until, tick = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            dice = self.random.random()
            if dice < 0.64 and len(self.made) < MOST_PODS:
                self.create(draw)
            elif self.made and (
                (dice < 0.9 and len(self.made) > MOST_PODS // 3) or len(self.made) >= MOST_PODS
            ):
                self.delete(self.random.choice(list(self.made)))
            elif self.made:
                self.resize(self.random.choice(list(self.made)))
            if refused:
                refused.go_on()
            tick += 1
            if tick % 4 == 0:
                self.reap()
            time.sleep(self.random.choice([0.05, 0.2, 0.4, 0.8, 1.2]))
        if refused:
            refused.end()

    def create(self, draw: Draw) -> None:
        """Make a pod that fits by the sum of its CPUs; where none is drawn that does, delete one."""
        for _ in range(4):
            kind = self.random.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
            spec = {"terminationGracePeriodSeconds": draw.one(0, 1, 1, 2), **KINDS[kind][1](draw)}
            if request_milli(spec) <= self._left_milli() or draw.happens(0.02):
                break
        else:
            by_age = sorted(self.made, key=lambda name: self.made[name].made_at)
            if len(by_age) > FEW_PODS:
                self.delete(self.random.choice(by_age[: 1 + len(by_age) // 2]))
            return
        self.count += 1
        name = f"{self.name}-{self.count}-{kind}"
        if kind in STATIC_KINDS and draw.happens(0.05):
            file = STATIC_PODS / f"{name}.yaml"
            file.write_text(yaml.safe_dump(pod(name, spec)))
            self.made[f"{name}-{self.name}"] = Made("static", spec, file)
            self.notes.add("did", do="static", name=f"{name}-{self.name}")
            return
        where = {"nodeName": self.name}
        if self.plan["nodes"] > 1 and draw.happens(0.3):
            name, where = f"{name}{SCHEDULED}", {}
        status, answer = self.ask(
            "POST",
            PODS,
            pod(
                name, {**spec, **where}, 10**6 * (self.number + 1) + self.count if draw.happens(0.7) else None
            ),
        )
        self.notes.add(
            "did", do="create", name=name, status=status, error="" if status == 201 else str(answer)[:300]
        )
        if status in (201, 0):
            self.made[name] = Made(kind, spec)

    def _left_milli(self) -> int:
        """Thousandths of a CPU that are left by the sum of requests; the kubelet counts pods until they are gone."""
        self.leaving = [one for one in self.leaving if now() - one[0] < 4]
        gone = sum(size for _, size in self.leaving)
        taken = sum(request_milli(one.spec) for one in self.made.values() if not one.ended_at)
        return 1000 * sum(map(len, self.cpus_by_node)) - taken - gone

    def delete(self, name: str) -> None:
        """Delete a pod, with one grace period or another."""
        one = self.made.pop(name)
        if not one.ended_at:
            self.leaving.append((now(), request_milli(one.spec)))
        if one.file:
            one.file.unlink(missing_ok=True)
            self.notes.add("did", do="delete", name=name)
            return
        words = self.random.choice(
            ["", "", "?gracePeriodSeconds=1", "", "", "?gracePeriodSeconds=1", "?gracePeriodSeconds=0"]
        )
        status, _ = self.ask("DELETE", f"{PODS}/{name}{words}")
        self.notes.add("did", do="delete", name=name, status=status, words=words)

    def resize(self, name: str) -> None:
        """Give a container of a pod another number of CPUs."""
        one = self.made[name]
        if one.kind not in RESIZED_KINDS:
            return
        which = self.random.choice(one.spec["containers"])
        was = which["resources"]["requests"]["cpu"]
        change = self.random.choice([-2, -1, 1, 2, 2])
        to = (
            self.random.choice(["700m", "1200m", "2"])
            if was.endswith("m")
            else str(min(max(1, int(was) + change), 6))
        )
        patch = {"spec": {"containers": [{"name": which["name"], "resources": amounts(to)}]}}
        status, answer = self.ask("PATCH", f"{PODS}/{name}/resize", patch, _MERGE)
        if status == 200:
            which["resources"] = amounts(to)
        error = "" if status == 200 else str(answer)[:200]
        self.notes.add(
            "did", do="resize", name=name, container=which["name"], was=was, to=to, status=status, error=error
        )

    def reap(self) -> None:
        """Delete pods that ended by themselves, after a while; forget those that the scheduler put elsewhere or nowhere."""
        status, answer = self.ask("GET", f"{PODS}?resourceVersion=0")
        if status != 200:
            return
        found = {one["metadata"]["name"]: one for one in answer["items"]}
        for name, one in list(self.made.items()):
            if one.file or name not in found:
                continue
            if found[name].get("status", {}).get("phase") in ("Failed", "Succeeded"):
                one.ended_at = one.ended_at or now()
                if now() - one.ended_at > self.random.choice([0.5, 2, 5]):
                    self.delete(name)
            elif not found[name]["spec"].get("nodeName") and now() - one.made_at > 15:
                self.delete(name)

    def empty(self) -> float:
        """Delete every pod of this node; returns how long it took until all were gone."""
        for name in list(self.made):
            self.delete(name)
        for file in STATIC_PODS.iterdir():
            file.unlink()
        began = time.monotonic()
        while time.monotonic() < began + EMPTY_S:
            status, answer = self.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}")
            if status == 200 and not answer["items"]:
                break
            if time.monotonic() > began + EMPTY_S / 3 and status == 200:
                for one in answer["items"]:
                    self.ask("DELETE", f"{PODS}/{one['metadata']['name']}")
            time.sleep(1)
        time.sleep(3)
        return time.monotonic() - began

    def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Ask the API server; status 0 where it does not answer."""
        try:
            return self.cluster.ask(method, path, body, kind)
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)


def short(config: dict[str, Any]) -> str:
    """A configuration in a line."""
    words = [
        config["topologyManagerPolicy"],
        config["topologyManagerScope"],
        *config["cpuManagerPolicyOptions"],
    ]
    return ", ".join([*words, *(["static memory"] if config.get("memoryManagerPolicy") == "Static" else [])])


def main(plan_file: str, number: str) -> int:
    """Play; 1 if the rig broke."""
    plan = json.loads(Path(plan_file).read_text())
    folder = Path(plan["folder"]) / f"node-{number}"
    try:
        Life(plan, int(number)).live()
    except Exception:  # noqa: BLE001 - whatever it is, it is told
        (folder / "broke").write_text(traceback.format_exc())
        return 1
    finally:
        with_oci = Path("/run/rig/oci.jsonl")
        if with_oci.exists():
            shutil.copy(with_oci, folder / "oci.jsonl")
        subprocess.run(["sync", "-f", str(folder)], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
