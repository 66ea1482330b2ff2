"""The kinds of objects that are read and written, and their addresses in the Kubernetes API."""

from dataclasses import dataclass
from urllib.parse import quote

from nri_plugin.kube import noderesourcetopology as nrt


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object.

    Attributes:
        version: of its group.
        plural: its name in addresses.
        group: empty for the core group.
        is_namespaced: whether its objects live in namespaces.
    """

    version: str
    plural: str
    group: str = ""
    is_namespaced: bool = False

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """The address of one object, or of all of them; of those of one namespace where it is given."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.is_namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural, *(quote(part, safe="") for part in (name, subresource) if part)]
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NODE_RESOURCE_TOPOLOGIES = Resource(nrt.V1ALPHA2, nrt.PLURAL, nrt.GROUP)
NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods", is_namespaced=True)
EVENTS = Resource("v1", "events", "events.k8s.io", is_namespaced=True)
