"""The fields of a checkpoint belong to its version: another release refuses a file with a field that it does not know."""

from nri_plugin.checkpoint.format import VERSION, Document
from nri_plugin.checkpoint.rows import (
    AllocationRow,
    AmountsRow,
    ContainerFactsRow,
    PodFactsRow,
    PodRefusalRow,
    ResizeRow,
    SavedContainer,
    SavedMemory,
    SavedNode,
    SavedPod,
    SizeRow,
)

FIELDS_OF_VERSION_4 = {
    Document: "format version writer generation node pods containers allocations checksum",
    SavedPod: "uid sandbox_id qos name namespace cgroup_parent cpu_milli memory_bytes hugepages sandbox_path limit_milli affinity affinity_preferred annotations run_seen facts devices_counted is_admitted regime vm_handler refusal",
    SavedContainer: "id pod_uid name phase cgroup_path cgroup_parent stored_cpus stored_mems limit_milli unplaced affinity affinity_preferred",
    SavedMemory: "nodes resource size_bytes",
    SizeRow: "cpus grown cpu_milli memory",
    ResizeRow: "before after",
    AllocationRow: "key cpus mems memory cpu_milli affinity preferred grown resize is_init is_pod_shared claim",
    SavedNode: "online reserved numa_nodes memory_nodes strict_cpu_reservation isolated memory",
    AmountsRow: "cpu_request_milli cpu_limit_milli memory_request_bytes memory_limit_bytes hugepages",
    ContainerFactsRow: "name kind amounts",
    PodFactsRow: "uid qos containers pod_resources",
    PodRefusalRow: "reason message with_devices is_final",
}


def test_a_change_of_the_fields_is_a_new_version():
    found = {kind: " ".join(kind.__struct_fields__) for kind in FIELDS_OF_VERSION_4}
    assert (VERSION, found) == (4, FIELDS_OF_VERSION_4), "raise VERSION, then write both down here"
