"""Clusters and pods of any kind, small enough to be asked one node at a time."""

from hypothesis import strategies as st

from nri_plugin.kube.noderesourcetopology import from_object
from nri_plugin.kube.pod_demand import pod_demand
from tests.kube_builders import container, nrt_object, pod_object

NAMES = ("cpu", "memory", "hugepages-1Gi", "vendor/gpu", "ephemeral-storage")
POLICIES = ("single-numa-node", "restricted", "best-effort", "none")

AVAILABLE = st.integers(-1500, 9000).map(lambda m: f"{m}m") | st.sampled_from(
    ("0", "1e3", "0.5", "1Ki", "2k", "+3", ".5", "700u", 4)
)
"""In every way that exporters write it; below zero where one has counted a pod twice."""


@st.composite
def nrt_objects(draw, most_zones=5):
    ids = draw(st.lists(st.integers(0, 70), min_size=0, max_size=most_zones, unique=True))
    zones = {one: draw(st.dictionaries(st.sampled_from(NAMES), AVAILABLE, max_size=5)) for one in ids}
    costs = {one: draw(st.lists(st.integers(10, 14), max_size=len(ids))) for one in ids}
    return nrt_object(
        "n",
        zones,
        policy=draw(st.sampled_from(POLICIES)),
        scope=draw(st.sampled_from(("container", "pod"))),
        costs=costs,
        topologyManagerMaxNUMANodes=str(draw(st.sampled_from((2, 8, 200)))),
        **{
            "nri-pin/topologyManagerPolicyOptions": draw(
                st.sampled_from(("", "prefer-closest-numa-nodes=true"))
            ),
            "nri-pin/podLevelResourceManagers": draw(st.sampled_from(("", "true"))),
        },
    )


def topologies(most_zones=5):
    return nrt_objects(most_zones).map(from_object)


AMOUNTS = st.sampled_from(("0", "500m", "0.5", "1", "1e0", "2", "3500m", "6", "12", "20E"))


@st.composite
def containers(draw):
    asked = draw(st.dictionaries(st.sampled_from(NAMES), AMOUNTS, max_size=4))
    if draw(st.booleans()):
        asked = {"cpu": "2", "memory": "1", **{k: v for k, v in asked.items() if v != "0"}}
    obj = container("c", limits=draw(st.sampled_from((True, True, False))))
    obj["resources"] = dict.fromkeys(obj["resources"], asked)
    if draw(st.booleans()):
        obj["restartPolicy"] = "Always"
    return obj


@st.composite
def own_resources(draw):
    """Of the pod itself; mostly those of a Guaranteed pod."""
    asked = draw(st.dictionaries(st.sampled_from(NAMES[:3]), AMOUNTS, max_size=3))
    if draw(st.booleans()):
        asked = {
            "cpu": "4",
            "memory": "2",
            **{name: amount for name, amount in asked.items() if amount != "0"},
        }
    parts = draw(
        st.sampled_from((("requests", "limits"), ("requests", "limits"), ("requests",), ("limits",), ()))
    )
    return dict.fromkeys(parts, asked)


@st.composite
def pod_objects(draw):
    obj = pod_object(
        *draw(st.lists(containers(), min_size=1, max_size=3)),
        init=draw(st.lists(containers(), max_size=2)),
        overhead=draw(st.sampled_from(({}, {"cpu": "250m"}))),
    )
    if draw(st.booleans()):
        obj["spec"]["resources"] = draw(own_resources())
    return obj


def pods():
    return pod_objects().map(pod_demand)
