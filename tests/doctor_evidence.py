"""A node as the checks of `nri-pin doctor` see it, without reading one: what a test does not name is as it should be."""

from nri_plugin import __version__
from nri_plugin.agent.observing.status_client import AgentStatus, RuntimeRow
from nri_plugin.cli.doctor.doctor import judged
from nri_plugin.cli.doctor.evidence import CgroupDir, Evidence, FoundConfig, Kernel, Tree
from nri_plugin.cli.doctor.findings import Finding
from nri_plugin.cli.doctor.settings import KubeletSettings, NRISettings
from nri_plugin.cli.doctor.view import NodeView
from nri_plugin.config.loading import load_text
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine

CONFIG = "/etc/nri-pin/config.yaml"
TOPOLOGY = machine(nodes=2, cores=4, threads=1)
TREE = "/sys/fs/cgroup"


def config(more: str = "") -> FoundConfig:
    return FoundConfig(CONFIG, load_text(f'reservedSystemCPUs: "0"\n{more}', CONFIG))


def status(**values: object) -> AgentStatus:
    node = Node(TOPOLOGY, Options(), CPUSet.parse("0"))
    known = {"state": State(), "agent": __version__, "runtime": RuntimeRow("containerd", "2.1.9")}
    return AgentStatus(node, **{**known, **values})  # type: ignore[arg-type]


def group(path: str, effective: str = "0-7", *, passes_on: bool = True, partition: str = "") -> CgroupDir:
    return CgroupDir(path, CPUSet(), CPUSet.parse(effective), passes_on, partition)


def evidence(**values: object) -> Evidence:
    """Shared values by their name in `Evidence`; `in_pod` is one of its view."""
    seen = Evidence(NodeView("/nowhere", [], in_pod=bool(values.pop("in_pod", False))))
    vars(seen).update(
        processes=(),
        topology=TOPOLOGY,
        kernel=Kernel("6.12.1"),
        tree=Tree(2, TREE, "kubepods.slice", (group(""), group("kubepods.slice"))),
        rivals=[],
        runs_irqbalance=False,
        spared=None,
        interrupts=(),
        kernel_threads=(),
        runtime_process=None,
        runtime_name="containerd",
        runtime_version="2.1.9",
        nri=NRISettings("containerd", ("/etc/containerd/config.toml",)),
        nri_answer="",
        plugins=(),
        drop_ins=(),
        kubelet=KubeletSettings(),
        state_policies={},
        pod_resources="",
        distribution=None,
        agent_process=None,
        has_unit=False,
        config=config(),
        state_dir="/run/nri-pin",
        answer="there is no such socket",
        reserved=CPUSet.parse("0"),
        checkpoint=None,
        is_in_memory=None,
        free_bytes=None,
        exporter=None,
        wants_partitions=False,
        may_partition=None,
    )
    vars(seen).update(values)
    return seen


def findings(group: str, **values: object) -> dict[str, Finding]:
    """The findings of a group, by check."""
    return {finding.check: finding for finding in judged(group, evidence(**values))}
