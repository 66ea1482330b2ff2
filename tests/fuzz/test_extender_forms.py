"""Whatever arrives at the extender's door, only an object error comes out."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from nri_plugin.extender.forms import read_args, read_binding
from nri_plugin.kube.noderesourcetopology import from_object
from nri_plugin.kube.pod_demand import pod_demand
from nri_plugin.model.errors import KubeObjectError

KEYS = st.sampled_from(
    [
        "Pod",
        "nodenames",
        "Nodes",
        "items",
        "metadata",
        "name",
        "spec",
        "status",
        "containers",
        "initContainers",
    ]
    + ["resources", "requests", "limits", "cpu", "overhead", "zones", "costs", "attributes", "value", "type"]
    + ["annotations", "topologyPolicies", "available", "restartPolicy", "qosClass", "uid"]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1", "Node"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"pod":' * 5000)
def test_bytes(body):
    for read in (read_args, read_binding):
        try:
            read(body)
        except KubeObjectError:
            continue


@given(st.dictionaries(KEYS, VALUES, max_size=6))
@example({"metadata": {"name": "n", "annotations": {"a": 1}}})
@example({"spec": {"containers": [{"restartPolicy": {}, "resources": {"requests": {"cpu": None}}}]}})
@example({"status": {"qosClass": []}})
def test_objects(obj):
    for read in (from_object, pod_demand):
        try:
            read(obj)
        except KubeObjectError:
            continue
