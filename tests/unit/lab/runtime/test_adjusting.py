import pytest

from nri_plugin.wire.nri import spec
from nri_plugin.wire.nri.events import NOTHING, Adjustment, CreateContainerResponse, overriding, removed
from nri_plugin.wire.nri.messages import Container, ContainerDetails, DeviceNode, DeviceRule, Resources
from tests.lab.runtime.adjusting import adjusted, heeded, known, merged

OLD_HOOK, NEW_HOOK = spec.Hook("/old"), spec.Hook("/new")
BASE = Container(
    "c1",
    annotations={"a": "1", "b": "2"},
    env=("A=1", "B=2"),
    devices=(DeviceNode("/dev/a", "c", 1, 2), DeviceNode("/dev/b", "c", 1, 3)),
    cdi_devices=("v/c=0",),
    net_devices=("eth0",),
    resources=Resources(cpu_shares=2, device_rules=(DeviceRule(),)),
    details=ContainerDetails(
        args=("sh",),
        mounts=(spec.MountSpec("/a"), spec.MountSpec("/b")),
        hooks=spec.Hooks(prestart=(OLD_HOOK,)),
        rlimits=(spec.Rlimit("RLIMIT_CORE", 1, 1),),
        namespaces=(spec.Namespace("pid"), spec.Namespace("ipc")),
        sysctl={"x": "1", "y": "2"},
        net_devices={"eth0": "net0"},
        rdt=spec.RDT(clos_id="gold"),
    ),
)


@pytest.mark.parametrize(
    "nothing", [Resources(), Resources(cpu_shares=0, cpu_quota_us=0, memory_limit_bytes=0)]
)
def test_absent_zero_and_empty_leave_alone(nothing: Resources) -> None:
    base = Resources(
        cpu_shares=100, cpu_quota_us=5, cpus="0", mems="1", memory_limit_bytes=7, unified={"a": "b"}
    )
    assert merged(base, nothing) == base


def test_what_is_set_replaces() -> None:
    base = Resources(cpus="0", mems="1", unified={"a": "1", "b": "2"})
    assert merged(base, Resources(cpus="3", unified={"b": "9"})) == Resources(
        cpus="3", mems="1", unified={"a": "1", "b": "9"}
    )


def test_hugepage_limits_replace_by_page_size_and_device_rules_are_appended() -> None:
    base = Resources(hugepage_limits=(("2MB", 1), ("1GB", 2)), device_rules=(DeviceRule(),))
    change = Resources(hugepage_limits=(("1GB", 3),), device_rules=(DeviceRule(allow=True),))
    assert merged(base, change) == Resources(
        hugepage_limits=(("2MB", 1), ("1GB", 3)), device_rules=(DeviceRule(), DeviceRule(allow=True))
    )


def test_nothing_changes_nothing() -> None:
    assert adjusted(BASE, NOTHING) == BASE
    assert adjusted(Container("c1"), NOTHING).details is None


def test_a_dash_removes() -> None:
    change = Adjustment(
        annotations={removed("a"): ""},
        env={removed("A"): ""},
        devices=(DeviceNode(removed("/dev/a")),),
        mounts=(spec.MountSpec(removed("/a")),),
        namespaces=(spec.Namespace(removed("pid")),),
        sysctl={removed("x"): ""},
        net_devices={removed("eth0"): ""},
    )
    after = adjusted(BASE, change)
    assert (after.annotations, after.env, after.net_devices) == ({"b": "2"}, ("B=2",), ())
    assert after.devices == (DeviceNode("/dev/b", "c", 1, 3),)
    details = after.details
    assert details is not None
    assert (details.mounts, details.namespaces) == ((spec.MountSpec("/b"),), (spec.Namespace("ipc"),))
    assert (details.sysctl, details.net_devices) == ({"y": "2"}, {})


def test_removing_and_setting_replaces() -> None:
    change = Adjustment(
        env={"A": "9", removed("A"): ""},
        mounts=(spec.MountSpec("/a", "tmpfs"), spec.MountSpec(removed("/a"))),
        sysctl={removed("x"): "", "x": "9"},
    )
    after = adjusted(BASE, change)
    assert after.env == ("B=2", "A=9")
    assert after.details is not None
    assert after.details.mounts == (spec.MountSpec("/b"), spec.MountSpec("/a", "tmpfs"))
    assert after.details.sysctl == {"x": "9", "y": "2"}


def test_lists_grow_and_single_values_are_replaced() -> None:
    change = Adjustment(
        cdi_devices=("v/c=1",),
        hooks=spec.Hooks(prestart=(NEW_HOOK,), poststop=(NEW_HOOK,)),
        rlimits=(spec.Rlimit("RLIMIT_CORE", 2, 2), spec.Rlimit("RLIMIT_CPU")),
        oom_score_adj=0,
        cgroups_path="/elsewhere",
        io_priority=spec.IOPriority(spec.IOClass.IDLE),
        scheduler=spec.Scheduler(spec.SchedulerPolicy.FIFO, priority=5),
        seccomp_policy=spec.Seccomp("SCMP_ACT_ALLOW"),
        resources=Resources(pids_limit=9, device_rules=(DeviceRule(allow=True),)),
        net_devices={"eth1": "net1"},
    )
    after = adjusted(BASE, change)
    details = after.details
    assert details is not None
    assert after.cdi_devices == ("v/c=0", "v/c=1")
    assert details.hooks == spec.Hooks(prestart=(OLD_HOOK, NEW_HOOK), poststop=(NEW_HOOK,))
    assert details.rlimits == (spec.Rlimit("RLIMIT_CORE", 2, 2), spec.Rlimit("RLIMIT_CPU"))
    assert (after.oom_score_adj, after.cgroups_path) == (0, "/elsewhere")
    assert (details.io_priority, details.scheduler) == (change.io_priority, change.scheduler)
    assert details.seccomp_policy == change.seccomp_policy
    assert after.resources.pids_limit == 9
    assert len(after.resources.device_rules) == 2
    assert (after.net_devices, details.net_devices) == (("eth0", "eth1"), {"eth0": "net0", "eth1": "net1"})


@pytest.mark.parametrize("args", [("zsh", "-l"), overriding(["zsh", "-l"])])
def test_args_replace_the_command(args: tuple[str, ...]) -> None:
    details = adjusted(BASE, Adjustment(args=args)).details
    assert details is not None
    assert details.args == ("zsh", "-l")


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (spec.RDT(schemata=("L3:0=f",)), spec.RDT("gold", ("L3:0=f",))),
        (spec.RDT(remove=True), None),
        (spec.RDT("tin", remove=True), spec.RDT("tin")),
    ],
)
def test_an_rdt_class_is_changed_removed_or_replaced(change: spec.RDT, after: spec.RDT | None) -> None:
    details = adjusted(BASE, Adjustment(rdt=change)).details
    assert details is not None
    assert details.rdt == after


def test_an_older_release_reads_only_what_it_knows() -> None:
    response = CreateContainerResponse(
        Resources(cpus="0", pids_limit=5), adjustment=Adjustment(args=("sh",), oom_score_adj=3)
    )
    assert known(response, (0, 12, 2)) == response
    assert known(response, (0, 8, 0)) == CreateContainerResponse(
        Resources(cpus="0", pids_limit=5), adjustment=Adjustment(oom_score_adj=3)
    )
    assert known(response, (0, 6, 1)) == CreateContainerResponse(Resources(cpus="0"))


def test_updates_lose_what_the_runtime_never_applies() -> None:
    change = Resources(cpus="0", memory_swap_bytes=1, hugepage_limits=(("2MB", 1),), rdt_class="gold")
    assert heeded(change, "containerd", is_own=False) == Resources(cpus="0", hugepage_limits=(("2MB", 1),))
    assert heeded(change, "cri-o", is_own=False).memory_swap_bytes == 1
    assert heeded(change, "cri-o", is_own=True) == Resources(cpus="0")
