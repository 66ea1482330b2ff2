"""The part of the CRI v1 API that a kubelet needs for what these tests do: field numbers, names and types.

One line per message: `NUMBER name type`, separated by commas; a type may be `repeated T` or `map` (string to string).
Enumerations appear as int32, which is the same on the wire.
"""

PACKAGE = "runtime.v1"

_TEXT = """
VersionRequest: 1 version string
VersionResponse: 1 version string, 2 runtime_name string, 3 runtime_version string, 4 runtime_api_version string
KeyValue: 1 key string, 2 value string
Mount: 1 container_path string, 2 host_path string, 3 readonly bool
Device: 1 container_path string, 2 host_path string, 3 permissions string
ImageSpec: 1 image string, 18 user_specified_image string
NamespaceOption: 1 network int32, 2 pid int32, 3 ipc int32
HugepageLimit: 1 page_size string, 2 limit uint64
LinuxContainerResources: 1 cpu_period int64, 2 cpu_quota int64, 3 cpu_shares int64, 4 memory_limit_in_bytes int64, 5 oom_score_adj int64, 6 cpuset_cpus string, 7 cpuset_mems string, 8 hugepage_limits repeated HugepageLimit
LinuxSandboxSecurityContext: 1 namespace_options NamespaceOption
LinuxPodSandboxConfig: 1 cgroup_parent string, 2 security_context LinuxSandboxSecurityContext, 5 resources LinuxContainerResources
PodSandboxMetadata: 1 name string, 2 uid string, 3 namespace string, 4 attempt uint32
PodSandboxConfig: 1 metadata PodSandboxMetadata, 3 log_directory string, 6 labels map, 7 annotations map, 8 linux LinuxPodSandboxConfig
RunPodSandboxRequest: 1 config PodSandboxConfig
RunPodSandboxResponse: 1 pod_sandbox_id string
StopPodSandboxRequest: 1 pod_sandbox_id string
StopPodSandboxResponse:
RemovePodSandboxRequest: 1 pod_sandbox_id string
RemovePodSandboxResponse:
ContainerMetadata: 1 name string, 2 attempt uint32
Int64Value: 1 value int64
Capability: 1 add_capabilities repeated string, 2 drop_capabilities repeated string
SecurityProfile: 1 profile_type int32, 2 localhost_ref string
LinuxContainerSecurityContext: 1 capabilities Capability, 2 privileged bool, 3 namespace_options NamespaceOption, 5 run_as_user Int64Value, 12 run_as_group Int64Value, 7 readonly_rootfs bool, 11 no_new_privs bool, 15 seccomp SecurityProfile
LinuxContainerConfig: 1 resources LinuxContainerResources, 2 security_context LinuxContainerSecurityContext
ContainerConfig: 1 metadata ContainerMetadata, 2 image ImageSpec, 3 command repeated string, 4 args repeated string, 6 envs repeated KeyValue, 7 mounts repeated Mount, 8 devices repeated Device, 9 labels map, 10 annotations map, 11 log_path string, 15 linux LinuxContainerConfig
CreateContainerRequest: 1 pod_sandbox_id string, 2 config ContainerConfig, 3 sandbox_config PodSandboxConfig
CreateContainerResponse: 1 container_id string
StartContainerRequest: 1 container_id string
StartContainerResponse:
StopContainerRequest: 1 container_id string, 2 timeout int64
StopContainerResponse:
RemoveContainerRequest: 1 container_id string
RemoveContainerResponse:
ContainerStatusRequest: 1 container_id string, 2 verbose bool
ContainerStatus: 1 id string, 2 metadata ContainerMetadata, 3 state int32
ContainerStatusResponse: 1 status ContainerStatus, 2 info map
UpdateContainerResourcesRequest: 1 container_id string, 2 linux LinuxContainerResources
UpdateContainerResourcesResponse:
"""


def messages() -> dict[str, list[tuple[int, str, str]]]:
    """Return the fields of every message as (number, name, type)."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for line in _TEXT.strip().splitlines():
        name, _, fields = line.partition(":")
        parts = (field.split(maxsplit=2) for field in fields.split(",") if field.strip())
        found[name] = [(int(number), field, kind) for number, field, kind in parts]
    return found
