import zlib

import pytest

from nri_plugin import __version__
from nri_plugin.checkpoint.format import VERSION, Encoder, decode
from nri_plugin.checkpoint.rows import CONTAINER, NodeFacts
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Regime,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from tests.builders import machine
from tests.builders import node as a_node

FACTS = PodFacts(
    "uid-1",
    QOSClass.GUARANTEED,
    (
        ContainerFacts("setup", Kind.INIT, Amounts(cpu_request_milli=1000)),
        ContainerFacts("app", Kind.APP, Amounts(memory_limit_bytes=1024, hugepages=(("hugepages-2Mi", 0),))),
        ContainerFacts("side"),
    ),
    Amounts(),
)
POD = PodRecord(
    "uid-1",
    "sb-1",
    "web-0",
    "shop",
    QOSClass.GUARANTEED,
    "/kubepods/poduid-1",
    2000,
    run_seen=True,
    facts=FACTS,
    devices_counted=True,
    is_admitted=True,
    regime=Regime.OFF,
)
RECORD = ContainerRecord(
    "c1",
    "uid-1",
    "app",
    Phase.RUNNING,
    CgroupRef("/kubepods/poduid-1", "/kubepods/poduid-1/c1"),
    CPUSet.of(2, 3),
)
ALLOCATION = Allocation(
    CPUSet.of(2, 3), NodeMask.of(0), (MemoryBlock(NodeMask.of(0), "memory", 1024),), 2000, NodeMask.of(0)
)
ENDED = Allocation(CPUSet.of(4), is_init=True)
STATE = State({"uid-1": POD}, {"c1": RECORD}, {"uid-1/app": ALLOCATION, "uid-1/setup": ENDED})

DOCUMENT = f"""\
{{"format":"nri-pin checkpoint","version":4,"writer":"{__version__}","generation":7,
"node":{{"online":"0-15","reserved":"0-1","numa_nodes":{{"0":"0-7","1":"8-15"}},"memory_nodes":"0-1"}},
"pods":[
{{"uid":"uid-1","sandbox_id":"sb-1","qos":"Guaranteed","name":"web-0","namespace":"shop",\
"cgroup_parent":"/kubepods/poduid-1","cpu_milli":2000,"run_seen":true,\
"facts":{{"uid":"uid-1","qos":"Guaranteed","containers":[{{"name":"setup","kind":"init","amounts":{{"cpu_request_milli":1000}}}},\
{{"name":"app","amounts":{{"memory_limit_bytes":1024,"hugepages":[["hugepages-2Mi",0]]}}}},{{"name":"side"}}],"pod_resources":{{}}}},"devices_counted":true,"is_admitted":true,"regime":"off"}}
],
"containers":[
{{"id":"c1","pod_uid":"uid-1","name":"app","phase":"running","cgroup_path":"/kubepods/poduid-1/c1","stored_cpus":"2-3"}}
],
"allocations":[
{{"key":"uid-1/app","cpus":"2-3","mems":"0","memory":[{{"nodes":"0","resource":"memory","size_bytes":1024}}],\
"cpu_milli":2000,"affinity":"0"}},
{{"key":"uid-1/setup","cpus":"4","is_init":true}}
]"""


def sealed(body: str) -> bytes:
    data = body.encode()
    return data + b',\n"checksum":"crc32:%08x"}\n' % zlib.crc32(data)


def test_document_is_readable_line_by_line() -> None:
    pieces = Encoder().encode(STATE, 7, NodeFacts.of(a_node(machine())))
    assert b"".join(pieces) == sealed(DOCUMENT)


def test_node_made_from_the_facts_judges_as_the_real_one_does() -> None:
    node = a_node(machine())
    overlapping = STATE.with_allocation("uid-2/x", Allocation(CPUSet.of(0, 3), NodeMask.of(5)))
    assert violations(NodeFacts.of(node).as_node(), overlapping) == violations(node, overlapping) != []
    assert STATE.shared_pool(NodeFacts.of(node).as_node()) == STATE.shared_pool(node)


@pytest.mark.parametrize(
    "cgroup",
    [
        CgroupRef("/kubepods/pod1", "/kubepods/pod1/c1"),
        CgroupRef("kubepods-pod1.slice", "kubepods-pod1.slice:cri-containerd:c1"),
        CgroupRef("/kubepods.slice/kubepods-pod1.slice", "kubepods-pod1.slice:crio:c1"),
        CgroupRef("/kubepods/pod1"),
        CgroupRef(""),
        CgroupRef("", "/c1"),
        CgroupRef("/", "c1"),
    ],
)
def test_cgroup_is_restored_whether_or_not_its_path_begins_with_its_parent(cgroup: CgroupRef) -> None:
    state = State(containers={"c1": ContainerRecord("c1", "u", "n", Phase.CREATED, cgroup)})
    assert decode(b"".join(Encoder().encode(state, 1))).state == state


def test_unchanged_records_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder()
    encoder.encode(STATE, 1)
    encoded: list[str] = []
    real = CONTAINER.row
    monkeypatch.setattr(CONTAINER, "row", lambda record, key: encoded.append(key) or real(record, key))
    encoder.encode(STATE.with_container(ContainerRecord("c2", "u", "n", Phase.CREATED, CgroupRef(""))), 2)
    assert encoded == ["c2"]


def test_replaced_record_is_encoded_again() -> None:
    encoder = Encoder()
    encoder.encode(STATE, 1)
    changed = STATE.with_allocation("uid-1/app", Allocation(CPUSet.of(5)))
    assert decode(b"".join(encoder.encode(changed, 2))).state == changed


def test_forgotten_record_leaves_the_document() -> None:
    encoder = Encoder()
    encoder.encode(STATE, 1)
    assert decode(b"".join(encoder.encode(STATE.without_container("c1"), 2))).state.containers == {}


REFUSED = {
    "another file": (b"{}", "does not begin as an nri-pin checkpoint does"),
    "the kubelet's state file": (b'{"policyName":"static","checksum":1}', "does not begin"),
    "nothing": (b"", "does not begin"),
    "a later version": (
        DOCUMENT.replace('"version":4', '"version":9').encode(),
        f"version 9 and this program \\({__version__}\\) reads version {VERSION}",
    ),
    "a cut": (sealed(DOCUMENT)[:-30], "cut short"),
    "a change": (
        sealed(DOCUMENT).replace(b'"cpus":"2-3"', b'"cpus":"2-4"'),
        "checksum is [0-9a-f]{8} and should be [0-9a-f]{8}",
    ),
    "a number for a set": (sealed(DOCUMENT.replace('"cpus":"2-3"', '"cpus":3')), "Expected `str`"),
    "a set that is none": (sealed(DOCUMENT.replace('"cpus":"2-3"', '"cpus":"3-2"')), "runs backwards"),
    "an unknown field": (sealed(DOCUMENT.replace('"affinity"', '"effinity"')), "unknown field"),
    "an unknown phase": (sealed(DOCUMENT.replace('"running"', '"flying"')), "Invalid enum value"),
    "a missing field": (sealed(DOCUMENT.replace('"sandbox_id":"sb-1",', "")), "missing required field"),
    "no JSON": (sealed(DOCUMENT.replace('"pods":[', '"pods":[[')), "Expected `object`, got `array`"),
    "a word too many": (sealed(DOCUMENT.replace('"pods":', '"pods" ')), "JSON is malformed"),
    "a container twice": (
        sealed(DOCUMENT.replace('"containers":[\n', '"containers":[\n' + DOCUMENT.split("\n")[6] + ",\n")),
        "holds a container twice: 2 records under 1 keys",
    ),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_checkpoint_of_ours_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(data)
