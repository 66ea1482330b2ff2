"""The largest pods that an API server accepts, and some that only `crictl` can make: what the bounds are for.

Kubernetes bounds a pod by its size alone: 1.5 MiB with at most 256 KiB of annotations. Within that its author is free. Each
`Shape` uses all of it for one thing. Environments may come from ConfigMaps as well, and are larger then.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec
from nri_plugin.wire.nri.messages import Container, DeviceNode, Pod, Resources
from tests.builders import container, pod

POD_BYTES = 1_500_000
ANNOTATION_BYTES = 256 << 10
REQUEST_BYTES = 4 << 20
"""The most that a runtime can send at once."""

ADDRESS = "0000:83:00.0"
LINE = ",".join([ADDRESS] * 256)
TRUSTED = "trusted"
"""The namespace whose annotations are heard."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is large about a pod.

    Attributes:
        pod: fields of its `Pod` message.
        container: fields of its `Container` messages.
        count: how many containers it has.
    """

    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1


def filled(what: Callable[[int], str], chars: int = POD_BYTES) -> tuple[str, ...]:
    """As many texts as fit."""
    texts: list[str] = []
    while chars > 0:
        texts.append(what(len(texts)))
        chars -= len(texts[-1])
    return tuple(texts[:-1])


def _environment(*lines: str) -> Shape:
    return Shape(container={"env": lines})


def _annotated(given: Mapping[str, str]) -> Shape:
    return Shape(pod={"annotations": given})


def _nodes(count: int, path: str = "/dev/x{}") -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(path.format(number), "c", 99, number) for number in range(count))


def _pages(sizes: tuple[str, ...]) -> Resources:
    return Resources(cpu_shares=2, hugepage_limits=tuple((size, 1 << 21) for size in sizes))


OWN = "nri-pin/exclusive-cpus.container."
SHAPES: Mapping[str, Callable[[], Shape]] = {
    "one variable": lambda: _environment("A=" + "x" * POD_BYTES),
    "small variables": lambda: _environment(*filled("A{}=".format)),
    "variables that list one device": lambda: _environment(*filled(lambda n: f"PCIDEVICE_{n}={LINE}")),
    "short variables that list devices": lambda: _environment(*filled("PCIDEVICE_{}=a".format)),
    "small variables that list devices": lambda: _environment(*filled("PCIDEVICE_{}=".format)),
    "a device variable of many devices": lambda: _environment(
        "PCIDEVICE_X=" + ",".join(filled("{:04x}:83:00.0".format))
    ),
    "a device variable of a long name": lambda: _environment(f"PCIDEVICE_{'A' * 500_000}={ADDRESS}"),
    "an environment of 4 MiB": lambda: _environment(
        "PCIDEVICE_X=" + ADDRESS, *filled("A{}=".format, REQUEST_BYTES)
    ),
    "one annotation": lambda: _annotated({f"{OWN}c": "9" * (ANNOTATION_BYTES - 64)}),
    "small annotations": lambda: _annotated(dict.fromkeys(filled("{:x}".format, ANNOTATION_BYTES), "")),
    "small annotations of ours": lambda: _annotated(
        dict.fromkeys(filled("nri-pin/{:x}".format, ANNOTATION_BYTES), "")
    ),
    "annotations of ours": lambda: _annotated({f"{OWN}c{n}": "9" * 200 for n in range(1000)}),
    "annotations of long names": lambda: _annotated({f"{OWN}{n}{'c' * 10_000}": "1" for n in range(25)}),
    "labels": lambda: Shape({"labels": dict.fromkeys(filled("{:x}".format, ANNOTATION_BYTES), "")}, {}),
    "names": lambda: Shape({"name": "n" * 253, "namespace": "s" * 63}, {"name": "c" * 63}),
    "names that no API server takes": lambda: Shape(
        {"name": "n" * 100_000, "uid": "u" * 100_000}, {"name": "c" * 100_000}
    ),
    "device nodes": lambda: Shape({}, {"devices": _nodes(4000)}),
    "device nodes of long paths": lambda: Shape({}, {"devices": _nodes(200, "/dev/{}/" + "x" * 4000)}),
    "CDI names": lambda: Shape({}, {"cdi_devices": tuple(f"v.com/x={n}" for n in range(4000))}),
    "CDI names of many nodes": lambda: Shape({}, {"cdi_devices": tuple(f"v.com/x={n}" for n in range(20))}),
    "long CDI names": lambda: Shape(
        {}, {"cdi_devices": tuple(f"v.com/{n}={'x' * 6000}" for n in range(250))}
    ),
    "interfaces": lambda: Shape({}, {"net_devices": tuple(f"eth{n}" for n in range(4000))}),
    "page sizes": lambda: Shape({"resources": _pages(filled("{}MB".format, 50_000))}, {}),
    "long page sizes": lambda: Shape(
        {"resources": _pages(tuple(f"{n}{'0' * 100_000}MB" for n in range(4)))}, {}
    ),
    "containers": lambda: Shape({"name": "n" * 253}, {}, 3000),
}
"""By what they are large in."""


def largest(kind: str, number: int = 0, namespace: str = TRUSTED) -> tuple[Pod, tuple[Container, ...]]:
    """The messages of such a pod."""
    shape = SHAPES[kind]()
    of = pod(f"{number:08}-0000-0000-0000-000000000000", "BestEffort", namespace=namespace)
    of = replace(of, **shape.pod)
    made = []
    for count in range(shape.count):
        one = container(of, f"{count:04}{'c' * 59}" if shape.count > 1 else "c", number=number)
        name = f"{number:08}{count:056}"
        made.append(replace(one, id=name, cgroups_path=f"{of.cgroup_parent}/{name}", **shape.container))
    return of, tuple(made)


def enlarged(spec: PodSpec, kind: str) -> PodSpec:
    """The pod of a simulated kubelet, as large as that."""
    shape = SHAPES[kind]()
    said = {key: value for key, value in shape.container.items() if key in {"env", "devices", "cdi_devices"}}
    containers: tuple[ContainerSpec, ...] = tuple(dataclasses.replace(one, **said) for one in spec.containers)
    own = {key: value for key, value in shape.pod.items() if key in {"labels", "annotations"}}
    return dataclasses.replace(spec, containers=containers, **own)


SPEC_KINDS = tuple(
    kind for kind in SHAPES if "that no API server takes" not in kind and kind not in {"containers", "names"}
)
"""Those that `enlarged` knows; pods of a simulation have names and amounts of their own."""
