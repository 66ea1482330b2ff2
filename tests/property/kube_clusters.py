"""Clusters and pods of any kind, small enough to be asked one node at a time."""

from hypothesis import strategies as st

from tests.kube_builders import container, pod, topology

NAMES = ("cpu", "memory", "hugepages-1Gi", "vendor/gpu", "ephemeral-storage")
POLICIES = ("single-numa-node", "restricted", "best-effort", "none")


@st.composite
def topologies(draw, most_zones=5):
    ids = draw(st.lists(st.integers(0, 70), min_size=0, max_size=most_zones, unique=True))
    zones = {
        one: draw(
            st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9000).map(lambda m: f"{m}m"), max_size=5)
        )
        for one in ids
    }
    costs = {one: draw(st.lists(st.integers(10, 14), max_size=len(ids))) for one in ids}
    return topology(
        "n",
        zones,
        policy=draw(st.sampled_from(POLICIES)),
        scope=draw(st.sampled_from(("container", "pod"))),
        costs=costs,
        topologyManagerMaxNUMANodes=str(draw(st.sampled_from((2, 8, 200)))),
        **{
            "nri-pin/topologyManagerPolicyOptions": draw(
                st.sampled_from(("", "prefer-closest-numa-nodes=true"))
            )
        },
    )


AMOUNTS = st.sampled_from(("0", "500m", "1", "2", "3500m", "6", "12"))


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
def pods(draw):
    return pod(
        *draw(st.lists(containers(), min_size=1, max_size=3)),
        init=draw(st.lists(containers(), max_size=2)),
        overhead=draw(st.sampled_from(({}, {"cpu": "250m"}))),
    )
