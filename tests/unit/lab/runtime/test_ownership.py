"""Every field and key belongs to whom sets it first, until somebody removes it."""

import pytest

from nri_plugin.wire.nri import spec
from nri_plugin.wire.nri.events import Adjustment, overriding, removed
from nri_plugin.wire.nri.messages import (
    ContainerUpdate,
    DeviceNode,
    DeviceRule,
    FieldOwners,
    OwnedField,
    Resources,
)
from tests.lab.runtime.adjusting import RESOURCE_FIELDS, Ownership

HOOK = spec.Hooks(prestart=(spec.Hook("/bin/true"),))
BY_KEY = {
    OwnedField.Annotations: lambda key: Adjustment(annotations={key: "v"}),
    OwnedField.Mounts: lambda key: Adjustment(mounts=(spec.MountSpec(key),)),
    OwnedField.Devices: lambda key: Adjustment(devices=(DeviceNode(key),)),
    OwnedField.CdiDevices: lambda key: Adjustment(cdi_devices=(key,)),
    OwnedField.Env: lambda key: Adjustment(env={key: "v"}),
    OwnedField.Rlimits: lambda key: Adjustment(rlimits=(spec.Rlimit(key),)),
    OwnedField.Namespace: lambda key: Adjustment(namespaces=(spec.Namespace(key),)),
    OwnedField.Sysctl: lambda key: Adjustment(sysctl={key: "v"}),
    OwnedField.LinuxNetDevices: lambda key: Adjustment(net_devices={key: "v"}),
    OwnedField.HugepageLimits: lambda key: Adjustment(resources=Resources(hugepage_limits=((key, 1),))),
    OwnedField.CgroupsUnified: lambda key: Adjustment(resources=Resources(unified={key: "v"})),
}
WHOLE = {
    OwnedField.Args: Adjustment(args=("sh",)),
    OwnedField.CgroupsPath: Adjustment(cgroups_path="/x"),
    OwnedField.OomScoreAdj: Adjustment(oom_score_adj=0),
    OwnedField.IoPriority: Adjustment(io_priority=spec.IOPriority()),
    OwnedField.SeccompPolicy: Adjustment(seccomp_policy=spec.Seccomp()),
    OwnedField.LinuxSched: Adjustment(scheduler=spec.Scheduler()),
    OwnedField.MemoryPolicy: Adjustment(memory_policy=spec.MemoryPolicy()),
    OwnedField.RdtClosID: Adjustment(rdt=spec.RDT(clos_id="")),
    OwnedField.RdtSchemata: Adjustment(rdt=spec.RDT(schemata=())),
    OwnedField.RdtEnableMonitoring: Adjustment(rdt=spec.RDT(enable_monitoring=False)),
    **{
        what: Adjustment(resources=Resources(**{name: "x" if name in {"cpus", "mems"} else 0}))
        for name, what in RESOURCE_FIELDS.items()
    },
}
REMOVABLE = sorted(
    set(BY_KEY)
    - {OwnedField.CdiDevices, OwnedField.Rlimits, OwnedField.HugepageLimits, OwnedField.CgroupsUnified}
)


def test_every_owned_field_of_the_protocol_is_claimed_by_something():
    assert {*BY_KEY, *WHOLE, OwnedField.OciHooks} == set(OwnedField)


@pytest.mark.parametrize("what", WHOLE, ids=lambda what: what.name)
def test_a_second_claim_fails_the_request_even_with_an_equal_value(what):
    owners = Ownership()
    assert owners.adjust("10-a", "c1", WHOLE[what]) == ""
    assert owners.adjust("10-a", "c2", WHOLE[what]) == ""
    assert owners.adjust("20-b", "c1", WHOLE[what]) == (
        f'plugins "20-b" and "10-a" both tried to set {what.name}'
    )


@pytest.mark.parametrize("what", BY_KEY, ids=lambda what: what.name)
def test_entries_are_owned_one_by_one(what):
    owners = Ownership()
    assert owners.adjust("10-a", "c1", BY_KEY[what]("k")) == ""
    assert owners.adjust("20-b", "c1", BY_KEY[what]("l")) == ""
    assert owners.adjust("20-b", "c1", BY_KEY[what]("k")).endswith(f"tried to set {what.name} k")


@pytest.mark.parametrize("what", REMOVABLE, ids=lambda what: what.name)
def test_removing_first_takes_an_entry_over(what):
    owners = Ownership()
    owners.adjust("10-a", "c1", BY_KEY[what]("k"))
    assert owners.adjust("20-b", "c1", BY_KEY[what](removed("k"))) == ""
    assert owners.adjust("30-c", "c1", BY_KEY[what]("k")) == ""
    assert owners.owners() == {"c1": FieldOwners({}, {what: {"k": "30-c"}})}


def test_removing_and_setting_in_one_answer_takes_an_entry_over():
    owners = Ownership()
    owners.adjust("10-a", "c1", Adjustment(env={"A": "1"}))
    assert owners.adjust("20-b", "c1", Adjustment(env={"A": "2", removed("A"): ""})) == ""
    assert owners.owners()["c1"].owner(OwnedField.Env, "A") == "20-b"


def test_an_overriding_command_takes_it_over_and_is_then_owned():
    owners = Ownership()
    owners.adjust("10-a", "c1", Adjustment(args=("sh",)))
    assert owners.adjust("20-b", "c1", Adjustment(args=overriding(["zsh"]))) == ""
    assert "Args" in owners.adjust("30-c", "c1", Adjustment(args=("bash",)))


def test_removing_the_rdt_class_gives_all_of_it_up():
    owners = Ownership()
    owners.adjust("10-a", "c1", Adjustment(rdt=spec.RDT(clos_id="gold", schemata=("L3:0=f",))))
    assert owners.adjust("20-b", "c1", Adjustment(rdt=spec.RDT(clos_id="tin", remove=True))) == ""
    assert owners.owners() == {"c1": FieldOwners({OwnedField.RdtClosID: "20-b"})}


def test_hooks_and_device_rules_never_conflict():
    owners = Ownership()
    change = Adjustment(hooks=HOOK, resources=Resources(device_rules=(DeviceRule(allow=True),)))
    assert owners.adjust("10-a", "c1", change) == owners.adjust("20-b", "c1", change) == ""
    assert owners.owners()["c1"].owner(OwnedField.OciHooks) == "10-a,20-b"


def test_an_update_meets_what_an_adjustment_claimed():
    owners = Ownership()
    owners.adjust("10-a", "c1", Adjustment(resources=Resources(cpus="0")))
    update = ContainerUpdate("c1", Resources(cpus="1"))
    assert "CPUSetCPUs" in owners.accept("20-b", (update,))[1]
    assert owners.accept("20-b", (ContainerUpdate("c1", Resources(cpus="1"), ignore_failure=True),)) == (
        (),
        "",
    )


def test_nri_0_6_words_pinning_in_its_own_way():
    owners = Ownership(speaks_0_6=True)
    owners.claim("10-a", "c1", Resources(cpus="0", cpu_shares=2))
    assert owners.claim("20-b", "c1", Resources(cpus="0")).endswith("both tried to set CPU pinning")
    assert owners.claim("20-b", "c1", Resources(cpu_shares=2)).endswith("both tried to set CPUShares")
