"""Anything as the exporter's answer. Allowed: NoAnswerError."""

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.agent.serving.pod_facts import NoAnswerError, PodResourcesClient
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import device_hint_sets
from nri_plugin.wire.nri.events import CreateContainer
from tests.builders import container, node, pod

EVENT = CreateContainer(pod(), container(pod()))
CLIENT = PodResourcesClient("/nowhere", lambda: 0.0)

words = st.sampled_from(
    ["devices", "pod_devices", "resource", "ids", "nodes", "totals", "x/gpu", "0", "0-1", "-1", ""]
    + [
        "facts",
        "uid",
        "qos",
        "containers",
        "name",
        "kind",
        "pod_resources",
        "hugepages",
        "Guaranteed",
        "init",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1100) | st.floats() | words | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {"resource": words, "ids": st.lists(words, max_size=3)},
    optional={
        "nodes": st.lists(st.integers(-2, 1100), max_size=3),
        "totals": st.dictionaries(words, st.integers(-1, 4)),
    },
)
amounts = st.dictionaries(
    st.sampled_from(["cpu_request_milli", "memory_request_bytes", "hugepages"]),
    st.integers(-1, 5000) | values,
)
kinds = st.sampled_from(["app", "init", "sidecar", "?"])
containers = st.builds(
    lambda name, kind, asked: {"name": name, "kind": kind, **asked}, words | st.just("c"), kinds, amounts
)
facts = st.fixed_dictionaries(
    {"uid": st.just(EVENT.pod.uid) | words, "qos": st.sampled_from(["Guaranteed", "Burstable"])},
    optional={"containers": st.lists(containers, max_size=3), "pod_resources": amounts | values},
)
others = st.dictionaries(words, st.lists(entries, max_size=3), max_size=3)
answers = st.fixed_dictionaries(
    {"devices": st.lists(entries, max_size=3)},
    optional={
        "pod_devices": values,
        "devices_by_container": others | values,
        "has_ended": st.booleans() | values,
        "facts": facts | values,
    },
)


def read(line):
    with contextlib.suppress(NoAnswerError):
        known = CLIENT._read(EVENT.pod, line)
        device_hint_sets(range(4), (*(known.devices or ()), *known.pod_devices))
        for _, others in known.devices_by_container:
            device_hint_sets(range(4), others)
        if known.facts is not None:
            decide(node(), State(), InformedCreate(EVENT, facts=known.facts))


@given(st.binary(max_size=100))
def test_any_bytes(line):
    read(line)


@given(values | answers)
def test_any_json(value):
    read(json.dumps(value).encode())
