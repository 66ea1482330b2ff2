"""Every field of every message is mapped, both ways; a new field of the protocol fails here until it is."""

import pytest

from nri_plugin.wire.nri import decode, spec, tables
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.events import Adjustment
from nri_plugin.wire.nri.messages import Container, OwnedField, Pod, Resources
from nri_plugin.wire.nri.tables import Table
from tests.unit.wire.nri.samples import fill, fill_all, reachable

TABLES = {table.message: table for table in vars(tables).values() if isinstance(table, Table)}
BY_DECODE = {
    "Container": {
        "id", "pod_sandbox_id", "name", "state", "labels", "annotations", "env", "pid", "CDI_devices", "linux.devices",
        "linux.resources", "linux.oom_score_adj", "linux.cgroups_path",
    },
    "PodSandbox": {
        "id", "name", "uid", "namespace", "labels", "annotations", "runtime_handler", "pid", "linux.pod_resources",
        "linux.pod_overhead", "linux.cgroup_parent", "linux.cgroups_path",
    },
}  # fmt: skip
"""Fields that `decode` reads by hand, because placement needs them and reads them for every container."""
GROUPS = {
    "LinuxContainerAdjustment": "ContainerAdjustment", "LinuxContainer": "Container", "LinuxPodSandbox": "PodSandbox",
    "LinuxMemory": "LinuxResources", "LinuxCPU": "LinuxResources",
}  # fmt: skip
"""Messages whose fields are columns of the message around them."""
IN_A_COLUMN = {
    "OptionalString", "OptionalRepeatedString", "OptionalInt", "OptionalUInt32", "OptionalInt64", "OptionalUInt64",
    "OptionalBool", "OptionalFileMode", "KeyValue", "CDIDevice", "LinuxNetDevice", "HugepageLimit", "LinuxPids",
}  # fmt: skip
"""Messages that a kind of column takes apart by itself."""
COLUMNS = [(table, column) for table in TABLES.values() for column in table.columns]
every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
every_column = pytest.mark.parametrize(
    ("table", "column"), COLUMNS, ids=[f"{table.message}.{column.name}" for table, column in COLUMNS]
)


def paths(descriptor, prefix=""):
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.name in GROUPS:
            yield from paths(field.message_type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def message_of(table):
    return getattr(pb, table.message)


@every_table
def test_every_field_has_a_column(table):
    mapped = {".".join(column.path) for column in table.columns} | BY_DECODE.get(table.message, set())
    assert mapped == set(paths(message_of(table).DESCRIPTOR))


@every_table
def test_every_attribute_has_a_column(table):
    assert sorted(column.name for column in table.columns) == sorted(table.make.__dataclass_fields__)


@pytest.mark.parametrize(
    "root", [pb.ContainerAdjustment, pb.Container, pb.PodSandbox], ids=lambda root: root.DESCRIPTOR.name
)
def test_every_message_inside_is_mapped(root):
    assert set(reachable(root.DESCRIPTOR)) <= {*TABLES, *GROUPS, *IN_A_COLUMN}


@every_column
def test_every_field_survives_alone(table, column):
    message = message_of(table)()
    inner = message
    for step in column.path[:-1]:
        inner = getattr(inner, step)
    fill(inner, inner.DESCRIPTOR.fields_by_name[column.path[-1]])
    value = table.read(message)
    assert [found.name for found, _ in table.set_fields(value) if found.name == column.name]
    assert message_of(table)(**table.write(value)) == message


@every_table
def test_a_full_message_survives(table):
    message = fill_all(message_of(table)())
    again = message_of(table)(**table.write(table.read(message)))
    for path in BY_DECODE.get(table.message, ()):
        assert clear(message, path)
    assert again == message


def clear(message, path):
    *groups, name = path.split(".")
    for group in groups:
        message = getattr(message, group)
    message.ClearField(name)
    return True


@every_table
def test_an_empty_message_is_the_value_with_nothing_set(table):
    value = table.read(message_of(table)())
    required = {name for name in ("destination", "path", "type") if name in table.write(value)}
    assert not set(table.write(value)) - required
    assert message_of(table)(**table.write(value)) == message_of(table)()


def test_a_full_container_and_a_full_pod_are_read_to_the_last_field():
    container = decode.detailed_container(fill_all(pb.Container()))
    pod = decode.detailed_pod(fill_all(pb.PodSandbox()))
    for value, nothing in ((container, Container("")), (pod, Pod(""))):
        same = [
            name
            for name in value.__dataclass_fields__
            if name != "cut" and getattr(value, name) == getattr(nothing, name)
        ]
        assert same == []
    assert container.resources.device_rules
    assert container.devices[0].gid == 7
    assert container.details.image.config_digest == "text"


def test_the_fast_reader_of_resources_skips_device_rules_only():
    message = fill_all(pb.LinuxResources())
    whole = tables.RESOURCES.read(message)
    message.ClearField("devices")
    assert decode.resources(message) == tables.RESOURCES.read(message)
    assert whole.device_rules
    assert decode.resources(pb.LinuxResources()) == Resources()


@pytest.mark.parametrize("column", tables.RESOURCES.columns, ids=lambda column: column.name)
def test_both_readers_of_resources_tell_zero_from_absent(column):
    message = inner = pb.LinuxResources()
    for step in column.path[:-1]:
        inner = getattr(inner, step)
    if column.kind.has_presence:
        getattr(inner, column.path[-1]).SetInParent()
        found = getattr(decode.resources(message), column.name)
        assert found is not None
        assert not found
    assert decode.resources(message) == decode.detailed_resources(message)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (spec.IOClass, pb.IOPrioClass), (spec.SchedulerPolicy, pb.LinuxSchedulerPolicy),
        (spec.SchedulerFlag, pb.LinuxSchedulerFlag), (spec.MemoryPolicyMode, pb.MpolMode),
        (spec.MemoryPolicyFlag, pb.MpolFlag), (spec.ProfileType, pb.SecurityProfile.ProfileType),
    ],
)  # fmt: skip
def test_enumerations_are_complete(ours, theirs):
    assert sorted(ours) == sorted(theirs.values())


def test_owned_fields_are_spelled_and_numbered_as_in_the_protocol():
    assert {field.name: field.value for field in OwnedField} == {
        name: number for name, number in pb.Field.items() if number
    }


def test_a_number_newer_than_we_are_stays_a_number():
    value = Adjustment(scheduler=spec.Scheduler(policy=99, flags=(98, spec.SchedulerFlag.RECLAIM)))
    message = pb.ContainerAdjustment(**tables.ADJUSTMENT.write(value))
    assert tables.ADJUSTMENT.read(message) == value


def test_set_to_nothing_is_not_the_same_as_not_set():
    nothing = spec.RDT(clos_id="", schemata=(), enable_monitoring=False)
    value = Adjustment(resources=Resources(rdt_class=""), rdt=nothing, oom_score_adj=0)
    message = pb.ContainerAdjustment(**tables.ADJUSTMENT.write(value))
    assert tables.ADJUSTMENT.read(message) == value
    assert value != Adjustment(resources=Resources(), rdt=spec.RDT())
