"""The object as published and as read."""

import pytest

from nri_plugin.kube.noderesourcetopology import (
    NodeResourceTopology,
    Zone,
    ZoneResource,
    format_amount,
    from_object,
    numa_id_of,
    parse_amount,
    short_uid,
    to_object,
)
from nri_plugin.model.errors import KubeObjectError

TOPOLOGY = NodeResourceTopology(
    "n1",
    (
        Zone(
            "node-0",
            resources=(ZoneResource("cpu", 8000, 7000, 3500),),
            costs=(("node-0", 10), ("node-1", 21)),
        ),
    ),
    (("topologyManagerPolicy", "restricted"), ("topologyManagerPolicy", "none")),
    ("Restricted",),
    (("x", "y"),),
)


def test_what_is_published_reads_back_equal():
    assert from_object(to_object(TOPOLOGY)) == TOPOLOGY


@pytest.mark.parametrize(
    ("value", "milli"),
    [
        ("0.5Gi", 2**29 * 1000),
        (7, 7000),
        ("64k", 64_000_000),
        ("1500m", 1500),
        ("1u", 1),
        ("-2", -2000),
        ("1e3", 1_000_000),
        (0, 0),
    ],
)
def test_amounts_may_be_text_of_any_suffix_or_integers(value, milli):
    assert parse_amount(value) == milli


@pytest.mark.parametrize("value", [None, True, 1.5, "", "x", "1Q", []])
def test_other_amounts_are_refused(value):
    with pytest.raises(KubeObjectError):
        parse_amount(value)


def test_amounts_are_written_without_suffix():
    assert [format_amount(m) for m in (0, 1000, 1500, 2**40 * 1000, -1)] == [
        "0",
        "1",
        "1500m",
        "1099511627776",
        "-1m",
    ]


@pytest.mark.parametrize(
    ("name", "numa_id"),
    [
        ("node-0", 0),
        ("node-130", 130),
        ("node--1", None),
        ("node-", None),
        ("numa-1", None),
        ("node-1a", None),
    ],
)
def test_only_node_and_digits_name_a_numa_node(name, numa_id):
    assert numa_id_of(name) == numa_id


def test_a_zone_of_another_type_is_no_numa_node():
    assert Zone("node-0", "L3 cache").numa_id is None


@pytest.mark.parametrize(
    "obj",
    [
        {"metadata": []},
        {"zones": {}},
        {"zones": [1]},
        {"zones": [{"name": "node-0"}]},
        {"zones": [{"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": "10"}]}]},
        {"attributes": [{"name": "a"}]},
        {"topologyPolicies": [1]},
    ],
)
def test_an_object_against_its_schema_is_refused_by_name(obj):
    with pytest.raises(KubeObjectError):
        from_object(obj)


def test_the_fingerprint_falls_back_to_the_annotation_which_means_all_pods():
    annotated = from_object(
        {
            "metadata": {"name": "n", "annotations": {"topology.node.k8s.io/fingerprint": "pfp0v001x"}},
            "attributes": [
                {"name": "nodeTopologyPodsFingerprintMethod", "value": "with-exclusive-resources"}
            ],
        }
    )
    assert (annotated.fingerprint, annotated.fingerprint_method) == ("pfp0v001x", "all")


def test_a_short_uid_tells_pods_apart_in_ten_digits():
    assert short_uid("8d7c1f3a-55d0-4ab1-9f6e-0d3c2b1a0f9e") == "8d7c1f3a55"


def hostile(**zone):
    return {"metadata": {"name": "n"}, "zones": [{"name": "node-0", "type": "Node", **zone}]}


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        (hostile(costs=[{"name": "node-0", "value": 1 << 63}]), r"zones\[0\].costs\[0\].value"),
        (hostile(costs=[{"name": "node-0", "value": -(1 << 40)}]), "Expected `int` >= -2147483647"),
        (hostile(resources=[{"name": "cpu", "capacity": "x"}]), "'x' is not a quantity"),
        ({"metadata": {"name": "n" * 318}}, "length <= 317"),
        (hostile(resources=[{"name": f"a/{n}", "available": "1"} for n in range(257)]), "length <= 256"),
        ({"metadata": {"name": "n"}, "zones": hostile()["zones"] * 257}, "length <= 256"),
    ],
)
def test_one_node_cannot_exhaust_those_who_read_all(obj, told):
    with pytest.raises(KubeObjectError, match=told):
        from_object(obj)


def test_a_number_that_no_machine_has_is_no_numa_node():
    assert numa_id_of("node-" + "9" * 5000) is None
    assert numa_id_of("node-" + "9" * 18) == 10**18 - 1
