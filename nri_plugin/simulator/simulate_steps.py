"""Does the steps of a plan on a node without a process, and tells what came of each.

Restarts, foreign writes and CPUs that go need a process, cgroups or a kernel: such a step is passed over and said.
"""

from collections.abc import Iterator

from nri_plugin.cpuset import CPUSet
from nri_plugin.nodemask import NodeMask
from nri_plugin.simulator.simulate_node import PlayedNode
from nri_plugin.simulator.simulate_plan import Plan
from nri_plugin.simulator.simulate_rows import Rows, words
from nri_plugin.simulator.simulate_shapes import Shapes
from nri_plugin.simulator.simulation import ContainerRow, Refusal, Stage, Status, StepRow
from nri_plugin.simulator.steps import Expect, Remove, Run, Say, Start, Step, Stop, Update


class StepPlayer:
    """Plays steps one by one.

    Attributes:
        rows: of what happened.
        latest: the newest row of every container that was ever asked for, by key.
        notes: of steps that were passed over.
    """

    def __init__(self, played: PlayedNode, plan: Plan, shapes: Shapes) -> None:
        self.rows: list[StepRow] = []
        self.latest: dict[str, ContainerRow] = {}
        self.notes: list[str] = []
        self._played, self._plan, self._shapes = played, plan, shapes
        self._made = Rows(played)

    def play(self, step: Step) -> None:
        """Do one."""
        match step:
            case Say():
                self._add(step, "say", step.text)
            case Run():
                self._run(step)
            case Start() | Stop() | Remove():
                self._move(step)
            case Update():
                self._update(step)
            case Expect():
                self._add(step, "expect", step.target, problems=tuple(self._problems(step)))
            case _:
                self._passed_over(step)

    def _run(self, step: Run) -> None:
        pod = step.pod
        workload = self._plan.workloads.get(pod.key, "")
        shape = self._shapes.key(pod, workload or pod.key)
        containers = tuple(self._made.tried(pod, one) for one in self._played.run(pod, start=step.start))
        self.latest.update({row.key: row for row in containers})
        self._add(
            step,
            "run" if step.start else "create",
            pod.key,
            workload=workload,
            shape=shape,
            qos=str(pod.qos),
            containers=containers,
        )

    def _move(self, step: Start | Stop | Remove) -> None:
        action = type(step).__name__.lower()
        getattr(self._played, action)(step.target)
        self._add(step, action, step.target)

    def _update(self, step: Update) -> None:
        if step.target not in self._played.live:
            problem = f"{step.target} does not run and cannot be updated"
            self._add(step, "update", step.target, problems=(problem,))
            return
        error = self._played.update(step.target, step.resources)
        refused = None if error is None else words(error, Stage.PLACEMENT)
        self._add(step, "update", step.target, refusal=refused)

    def _passed_over(self, step: Step) -> None:
        what = type(step).__name__.lower()
        self.notes.append(
            f"{self._plan.file}:{step.line}: {what} passed over: there is no agent process here; nri-pin demo plays it"
        )

    def _add(
        self,
        step: Step,
        action: str,
        target: str,
        *,
        workload: str = "",
        shape: str = "",
        qos: str = "",
        containers: tuple[ContainerRow, ...] = (),
        problems: tuple[str, ...] = (),
        refusal: Refusal | None = None,
    ) -> None:
        self.rows.append(
            StepRow(
                number=len(self.rows) + 1,
                line=step.line,
                action=action,
                target=target,
                workload=workload,
                shape=shape,
                qos=qos,
                containers=containers,
                problems=tuple(f"{self._plan.file}:{step.line}: {text}" for text in problems),
                refusal=refusal,
                exclusive_cpus=len(self._played.state.exclusive),
            )
        )

    # ------------------------------------------------------------ expectations

    def _problems(self, step: Expect) -> Iterator[str]:
        row = self.latest.get(step.target)
        refused = row.refusal if row is not None and row.status is Status.REFUSED else None
        if step.refused is not None:
            if refused is None:
                yield f"{step.target} should have been refused with {step.refused}, it was not"
            elif step.refused not in refused.text:
                yield f"{step.target} should have been refused with {step.refused}, it was with: {refused.text}"
            return
        if row is None or not self._played.is_running(step.target):
            yield f"{step.target} should run" + (f", but was refused: {refused.text}" if refused else "")
            return
        for what, expected, found in _compared(step, self._made.now(row)):
            if expected is not None and str(expected) != str(found):
                yield f"{step.target} should have {what} {expected}, it has {found}"


def _compared(step: Expect, has: ContainerRow) -> Iterator[tuple[str, object, object]]:
    yield "cpus", step.cpus, has.cpus
    yield "memory nodes", step.mems, has.mems
    yield "exclusive cpus:", step.exclusive, has.exclusive
    yield "NUMA nodes:", step.numa_nodes, len(NodeMask.parse(has.numa_nodes))
    yield "uncore caches:", step.caches, len(CPUSet.parse(has.caches))
    if step.devices is not None:
        yield "devices", _devices(step.devices), _devices(has.devices)


def _devices(given: object) -> str:
    assert isinstance(given, dict)
    return ", ".join(f"{name} {','.join(sorted(ids))}" for name, ids in sorted(given.items())) or "none"
