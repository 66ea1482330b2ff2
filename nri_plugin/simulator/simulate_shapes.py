"""Shapes of pods: what pods ask for, apart from their names, and how it is said."""

from collections.abc import Iterable
from dataclasses import replace

from nri_plugin.app import config_yaml as source
from nri_plugin.bounds import OWN_ANNOTATIONS
from nri_plugin.errors import ConfigError
from nri_plugin.options import Options
from nri_plugin.quantity import format_bytes
from nri_plugin.simulator.pods import ContainerSpec, PodSpec, hugepages_resource
from nri_plugin.simulator.scenario_containers import AMOUNT_KEYS, read_container

OPTION = "--shape"
NOTHING = "nothing"


class Shapes:
    """Gives every different shape a key, `s1`, `s2`, ... in the order they are met.

    Attributes:
        pods: one pod of each shape, by key.
        counts: how many pods there are of it.
        examples: whom a reader knows it by.
    """

    def __init__(self, options: Options) -> None:
        self.pods: dict[str, PodSpec] = {}
        self.counts: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self._options = options
        self._keys: dict[str, str] = {}

    def key(self, pod: PodSpec, example: str = "") -> str:
        """The key of the pod's shape; counts it where there is an example."""
        plain = self._plain(pod)
        key = self._keys.setdefault(repr(plain), f"s{len(self._keys) + 1}")
        self.pods.setdefault(key, plain)
        self.counts[key] = self.counts.get(key, 0) + bool(example)
        self.examples.setdefault(key, example)
        return key

    def texts(self) -> dict[str, str]:
        """What each asks for."""
        return {key: shape_text(pod) for key, pod in self.pods.items()}

    def _plain(self, pod: PodSpec) -> PodSpec:
        """The pod without what no placement depends on."""
        options = self._options
        is_heard = pod.namespace in options.annotation_namespaces
        heard = {
            key: value
            for key, value in sorted(pod.annotations.items())
            if is_heard and key.startswith(OWN_ANNOTATIONS)
        }
        matters = is_heard or pod.namespace in options.never_refuse
        return replace(
            pod,
            name="",
            namespace=pod.namespace if matters else "",
            labels={},
            annotations=heard,
            forced_qos=pod.qos,
            containers=_renamed(pod.containers, "c", keep=bool(heard)),
            init_containers=_renamed(pod.init_containers, "i", keep=bool(heard)),
        )


def read_shape(text: str) -> PodSpec:
    """A pod of one container that asks for `cpu=4,memory=8Gi,nvidia.com/gpu=1`, request and limit at once.

    Raises:
        ConfigError: it is not of that form; names the key.
    """
    entries: dict[str, source.Value] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name or not value:
            raise ConfigError(
                OPTION, f"expected NAME=AMOUNT,NAME=AMOUNT such as cpu=4,memory=8Gi; found {pair}"
            )
        entries[name] = source.Scalar(source.Place(OPTION, path=name), value, "str")
    if not entries:
        raise ConfigError(OPTION, "expected NAME=AMOUNT,NAME=AMOUNT such as cpu=4,memory=8Gi; found nothing")
    places = {name: value.place for name, value in entries.items()}
    section = source.Section(source.Place(OPTION), entries, places)
    return PodSpec("shape", containers=(read_container("c", section),))


def shape_text(pod: PodSpec) -> str:
    """What the pod asks for, in words: `Guaranteed: cpu 4, memory 8Gi + sidecar cpu 500m`."""
    parts = [
        f"{'sidecar' if one.is_sidecar else 'init'} {_container_text(one)}" for one in pod.init_containers
    ]
    apps = _counted(map(_container_text, pod.containers))
    whole = [f"as a whole {_amounts_text(_whole(pod))}"] if pod.whole is not None else []
    return f"{pod.qos}: " + " + ".join([*whole, *apps, *parts])


def asks_for_something(pod: PodSpec) -> bool:
    """Whether anything that is counted is asked for."""
    return pod.whole is not None or any(_amounts(one) for one in (*pod.init_containers, *pod.containers))


def _renamed(specs: Iterable[ContainerSpec], letter: str, *, keep: bool) -> tuple[ContainerSpec, ...]:
    """Annotations name containers; else their names are nobody's business."""
    return tuple(
        replace(one, name=one.name if keep else f"{letter}{number}", env=())
        for number, one in enumerate(specs)
    )


def _counted(texts: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return [text if count == 1 else f"{count} x ({text})" for text, count in counts.items()]


def _container_text(spec: ContainerSpec) -> str:
    return _amounts_text(_amounts(spec)) or NOTHING


def _amounts_text(amounts: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {_range(name, *both)}" for name, both in amounts.items())


def _amounts(spec: ContainerSpec) -> dict[str, tuple[int, int]]:
    """(request, limit) of what is asked for."""
    pages = {hugepages_resource(size): (amount, amount) for size, amount in spec.hugepages}
    found = {
        "cpu": (spec.cpu_request_milli, spec.cpu_limit_milli),
        "memory": (spec.memory_request_bytes, spec.memory_limit_bytes),
        **pages,
        **{name: (count, count) for name, count in spec.devices_asked},
    }
    return {name: both for name, both in found.items() if any(both)}


def _whole(pod: PodSpec) -> dict[str, tuple[int, int]]:
    whole = pod.whole
    if whole is None:
        return {}
    found = {
        "cpu": (whole.cpu_request_milli, whole.cpu_limit_milli),
        "memory": (whole.memory_request_bytes, whole.memory_limit_bytes),
        **{name: (amount, amount) for name, amount in whole.hugepages},
    }
    return {name: both for name, both in found.items() if any(both)}


def _range(name: str, request: int, limit: int) -> str:
    if request == limit:
        return _amount(name, request)
    return f"{_amount(name, request)} to {_amount(name, limit) if limit else 'any'}"


def _amount(name: str, amount: int) -> str:
    if name == AMOUNT_KEYS[0]:
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    return str(amount) if "/" in name else format_bytes(amount)
