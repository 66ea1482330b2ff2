"""Bounds on the input that the author of a pod controls: how much of it is kept, and how much is read.

Environment, annotations, labels, names, device lists, CDI names, network interfaces and resource names are input of a
person whom the agent does not trust: anyone who may create pods. The API server accepts a pod of 1.5 MiB with 256 KiB
of annotations. The runtime drops a plugin that answers late, and a memory limit ends one that keeps too much. This module
holds all bounds, and every reader of such input uses them.

Invariants, for every pod that an API server accepts:

* the agent keeps at most `POD_BYTES` and `CONTAINER_BYTES` for each container, in memory, in the checkpoint and in
  a line of the history;
* no environment, annotation, label or name makes a request slower by more than 5 ms of CPU time.

Real pods stay below all bounds. Input beyond a bound is left out, never guessed at: `Cut` names the bound, and the
agent logs it once for each pod.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

# ----------------------------------------------------------------------------------------------------
# Text for terminals: nothing in it moves the cursor, changes colours or titles, or hides other text.
#
# Names come from pods, files and other programs. All text for people passes through here last. JSON does not need
# it, because JSON escapes control characters itself.


_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but tab and end of line: C0, DEL, C1
    "\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # what changes the direction of text, or has no width
    "\u2028\u2029"  # further ends of lines
    "\ud800-\udfff]"  # bytes of names that are no UTF-8, which no output takes
)


def visible(text: str) -> str:
    """The text with each control character spelled as an escape sequence; tabs and ends of lines stay."""
    return _HIDDEN.sub(_escape, text)


def visible_line(text: str) -> str:
    """The same of what has to stay one line."""
    return visible(text).replace("\n", "\\n")


def _escape(found: re.Match[str]) -> str:
    """Of those that may stand as they are in JSON, the escape that JSON has for it: its text means the same then."""
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}"


# ----------------------------------------------------------------------------------------------------
# The bounds.

POD_BYTES: Final = 16 << 10
"""The most that the agent keeps for a pod, without its containers."""

CONTAINER_BYTES: Final = 1 << 10
"""The same for each of its containers."""

NAME_CHARS: Final = 253
"""Of a name or uid. Source: Kubernetes, names of objects are DNS subdomains (RFC 1123)."""

SHARED_NAMES: Final = 2048
"""Names that are remembered so that equal ones are one object."""

OWN_ANNOTATIONS: Final = "nri-pin/"
"""The prefix of the annotations that the agent reads."""

HEARD_ANNOTATIONS: Final = (
    OWN_ANNOTATIONS,
    "irq-load-balancing.crio.io",
    "cpu-c-states.crio.io",
    "irq-affinity.resource-policy.nri.io/",
)
"""How the names of annotations begin that the agent reads: ours, and those of CRI-O and nri-plugins for quiet CPUs."""

ANNOTATIONS_SEEN: Final = 1024
"""Annotations of a pod. The agent reads none of a pod with more: their order on the wire is random, so some of them
would be other ones of ours each time. A pod of a busy service mesh has about 50."""

ANNOTATIONS: Final = 32
"""Annotations of ours that a pod may have: four for each of eight containers. Together they take 10 KiB in memory."""

ANNOTATION_KEY_CHARS: Final = 253 + 1 + 63
"""Source: Kubernetes, a qualified name: prefix, slash, name."""

ANNOTATION_VALUE_CHARS: Final = 64
"""Of a value. All that mean something are words and small numbers; a longer one means nothing, cut or not."""

LISTS_DEVICES: Final = "PCIDEVICE_"
"""The prefix of variables that list PCI devices. Source: SR-IOV network device plugin."""

CLAIMS_CPUS: Final = "DRA_CPUSET_"
"""The prefix of variables that tell the CPUs of a resource claim. Source: kubernetes-sigs/dra-driver-cpu, pkg/driver/cdi.go."""

VARIABLES_SEEN: Final = 1024
"""Environment variables, from the first. The kubelet puts those of device plugins before those of the pod, and the
runtime those of the image before both. Source: kubelet v1.36 kubelet_pods.go, GenerateRunContainerOptions."""

VARIABLES: Final = 32
"""Variables that list devices or CPUs; a container has one or two for each device resource, and one for each claim."""

ENVIRONMENT_CHARS: Final = 16 << 10
"""Of all such variables of a container; one with a name of 327 characters and 256 addresses has 5 KiB at most."""

ENVIRONMENT_REQUEST_BYTES: Final = 2 << 20
"""A longer request is read without its environment. A pod has at most 1.5 MiB; a runtime sends up to 4 MiB, which
takes 10 ms to read where they are many small variables."""

DEVICES: Final = 256
"""Distinct devices of a container, device nodes, CDI names or network interfaces each. A physical function has at most
256 virtual ones, a machine 16 GPUs. A container with more device nodes is a privileged one, which lists those of
the host."""

HOST_ONLY_DEVICES: Final = frozenset({(1, 1), (1, 11)})
"""/dev/mem and /dev/kmsg: no device plugin gives them, a privileged container lists them with all others."""

CDI_NAME_CHARS: Final = 512
"""Of a CDI name, `vendor.com/class=device`."""

DEVICE_LOOKUPS: Final = 1024
"""Device numbers that are looked up in sysfs for one container: its own nodes and those behind its CDI names."""

DEVICE_RESOURCES: Final = 16
"""Device resources of a container: the merge of hints takes each of them, and 16 cost it 5 ms on eight NUMA nodes. A
container with GPUs and all the NICs of its machine has about ten."""

DEVICE_CHARS: Final = 12 << 10
"""Of all names of devices and resources of a container and of its pod, so that a line of the history stays below
`POD_BYTES`. 256 PCI addresses have 3 KiB, and 128 names of GPUs 5 KiB."""

PATH_CHARS: Final = 255
"""Of the path of a device node. Source: Linux, NAME_MAX; a device has a short one below /dev."""

PAGE_SIZES: Final = 4
"""Sizes of huge pages; arm64 has four (64 KiB, 2 MiB, 32 MiB, 1 GiB), no other architecture has more."""

PAGE_SIZE_CHARS: Final = 64
"""Of the name of such a size, as `hugepages-1Gi`."""

FACTS_CONTAINERS: Final = 512
"""Containers of a pod whose facts are known; an answer of the exporter has no room for many more."""

REASON_CHARS: Final = 256
"""Of the reason why a container runs without a place, which is kept for as long as it runs."""

SYNCHRONIZED: Final = 1 << 16
"""Pods, and containers, in one Synchronize; nodes are made for hundreds of pods."""

_DIGEST_CHARS: Final = 16


class Cut(StrEnum):
    """The part of a pod or container that was left out."""

    NAMES = "names"
    ANNOTATIONS = "annotations"
    ENVIRONMENT = "environment"
    DEVICES = "devices"
    PAGE_SIZES = "huge page sizes"


_shared_names: Final[dict[str, str]] = {}


def name(text: str) -> str:
    """A name or uid as it is kept: a longer one ends in a digest, so that two different ones stay different.

    Equal names are one object: pods of one template, and a pod's facts and its containers, share them.
    """
    if len(text) <= NAME_CHARS:
        # Not by `sys.intern`: in CPython 3.12.0 to 3.12.7 such texts are never freed.
        if len(_shared_names) >= SHARED_NAMES:
            _shared_names.clear()
        return _shared_names.setdefault(text, text)
    # Loaded here, because it loads OpenSSL, 3 MiB of resident memory. Names of Kubernetes are never so long.
    from hashlib import sha256

    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{text[: NAME_CHARS - _DIGEST_CHARS - 1]}~{digest}"


def values_in(text: bytes | str) -> int:
    """About how many values JSON or YAML has: what it is read into takes some hundred bytes for each.

    The size alone does not bound that: a list of empty lists takes 30 times its text.
    """
    found: int = (
        sum(text.count(one) for one in (b",", b"{", b"[", b"\n", b"- "))
        if isinstance(text, bytes)
        else sum(map(text.count, (",", "{", "[", "\n", "- ")))
    )
    return found


def reason(text: str) -> str:
    """Why a container has no place, as it is kept."""
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 3]}..."


def own_annotations(given: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """The annotations that the agent reads, ours first, and whether some of them were left out.

    Of too many the first are kept, the same ones every time.
    """
    if len(given) > ANNOTATIONS_SEEN:
        return {}, True
    keys = sorted((key for key in given if key.startswith(HEARD_ANNOTATIONS)), key=_ours_first)
    kept = [key for key in keys if len(key) <= ANNOTATION_KEY_CHARS][:ANNOTATIONS]
    return {key: given[key][:ANNOTATION_VALUE_CHARS] for key in kept}, len(kept) < len(keys)


def _ours_first(key: str) -> tuple[bool, str]:
    return not key.startswith(OWN_ANNOTATIONS), key


def page_sizes(given: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Amounts by size of huge pages."""
    return tuple([(size, amount) for size, amount in given[:PAGE_SIZES] if len(size) <= PAGE_SIZE_CHARS])
