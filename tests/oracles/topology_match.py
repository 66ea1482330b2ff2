"""The scheduler plugin NodeResourceTopologyMatch on plain JSON objects, slow and obvious.

Written from `nrt-and-scheduling`, sections 1.6, 2 and 3, rule by rule, without any code of the product: amounts are
exact fractions, sets of NUMA nodes are all tried, the hash is spelt out.
"""

import itertools
import math
import struct
from fractions import Fraction

SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
SUFFIXES |= {one: Fraction(10 ** (3 * (at + 1))) for at, one in enumerate("kMGTPE")}
SUFFIXES |= {f"{one}i": Fraction(2 ** (10 * (at + 1))) for at, one in enumerate("KMGTPE")}


def quantity(value) -> Fraction:
    """1.4: a number, or digits with a suffix or an exponent."""
    text = str(value)
    number = text.rstrip("numkKMGTPEi") if text[-1] not in "0123456789." else text
    suffix = text[len(number) :]
    mantissa, exponent = number, 0
    for mark in "eE":
        if mark in number:
            mantissa, exponent = number.split(mark)[0], int(number.split(mark)[1])
    return (
        Fraction(mantissa.rstrip(".") if mantissa[0] != "." else f"0{mantissa}")
        * Fraction(10) ** exponent
        * (SUFFIXES[suffix])
    )


def quantities(given) -> dict[str, Fraction]:
    return {name: quantity(value) for name, value in (given or {}).items()}


def whole(amount: Fraction) -> int:
    """Up to whole units, away from zero as Kubernetes does."""
    return math.ceil(amount) if amount >= 0 else math.floor(amount)


# 2.2 Classes of resources and of pods


def native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def affine(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def host_level(name: str) -> bool:
    return name in ("ephemeral-storage", "storage") or not native(name)


def init_containers(pod):
    return pod["spec"].get("initContainers") or []


def app_containers(pod):
    return pod["spec"].get("containers") or []


def asked(container):
    return quantities((container.get("resources") or {}).get("requests"))


def limited(container):
    return quantities((container.get("resources") or {}).get("limits"))


def is_sidecar(container) -> bool:
    return container.get("restartPolicy") == "Always"


def qos(pod) -> str:
    told = (pod.get("status") or {}).get("qosClass")
    if told:
        return told
    of_pod = pod["spec"].get("resources")
    everyone = [{"resources": of_pod}] if of_pod is not None else init_containers(pod) + app_containers(pod)

    def total(of):
        sums = {}
        for one in everyone:
            for name in ("cpu", "memory"):
                if of(one).get(name, 0) > 0:
                    sums[name] = sums.get(name, 0) + of(one)[name]
        return sums

    if not total(asked) and not total(limited):
        return "BestEffort"
    both = all(limited(one).get("cpu", 0) > 0 and limited(one).get("memory", 0) > 0 for one in everyone)
    return "Guaranteed" if both and total(asked) == total(limited) else "Burstable"


def wants_devices(pod) -> bool:
    return any(not native(name) for one in init_containers(pod) + app_containers(pod) for name in asked(one))


def effective(pod) -> dict[str, Fraction]:
    """2.6: per resource the larger of all app and any init container, and overhead."""
    sums = {}
    for one in app_containers(pod):
        for name, amount in asked(one).items():
            sums[name] = sums.get(name, 0) + amount
    for one in init_containers(pod):
        for name, amount in asked(one).items():
            sums[name] = max(sums.get(name, Fraction(0)), amount)
    for name, amount in quantities(pod["spec"].get("overhead")).items():
        sums[name] = sums.get(name, 0) + amount
    return sums


def exclusive(pod, names) -> bool:
    """2.7."""
    for one in app_containers(pod) + [one for one in init_containers(pod) if is_sidecar(one)]:
        for name, amount in asked(one).items():
            if not native(name) and name in names:
                return True
            if qos(pod) != "Guaranteed" or amount <= 0:
                continue
            if name == "cpu" and amount.denominator == 1:
                return True
            if name == "memory" or name.startswith("hugepages-"):
                return True
    return False


# 2.3, 2.4 What a node tells

LEGACY = {
    f"{word}{level}Level": (policy, level.lower())
    for word, policy in (
        ("SingleNUMANode", "single-numa-node"),
        ("Restricted", "restricted"),
        ("BestEffort", "best-effort"),
    )
    for level in ("Container", "Pod")
}


def configured(nrt) -> tuple[str, str, int]:
    """Policy, scope, divisor."""
    policy, scope, most = "none", "container", 8
    policies = nrt.get("topologyPolicies") or []
    if policies and policies[0] in LEGACY:
        policy, scope = LEGACY[policies[0]]
    for one in nrt.get("attributes") or []:
        name, value = one["name"], one["value"]
        if name == "topologyManagerScope" and value in ("container", "pod"):
            scope = value
        if name == "topologyManagerPolicy" and value in (
            "none",
            "best-effort",
            "restricted",
            "single-numa-node",
        ):
            policy = value
        if name == "topologyManagerMaxNUMANodes":
            digits = value[1:] if value[:1] in ("+", "-") else value
            if digits and all(digit in "0123456789" for digit in digits) and 1 < int(value) < 2**63:
                most = min(int(value), 1024)
    return policy, scope, most


def zone_id(name: str) -> int | None:
    start, _, digits = name.partition("-")
    return int(digits) if start == "node" and digits and all(one in "0123456789" for one in digits) else None


def numa_list(nrt, highest=63):
    """[{id, resources, costs}] of the zones that count."""
    found = []
    for zone in nrt.get("zones") or []:
        number = zone_id(zone["name"])
        if zone["type"] != "Node" or number is None or number > highest:
            continue
        costs = {zone_id(one["name"]): one["value"] for one in zone.get("costs") or []}
        found.append(
            {
                "id": number,
                "resources": {one["name"]: quantity(one["available"]) for one in zone.get("resources") or []},
                "costs": {key: value for key, value in costs.items() if key is not None},
            }
        )
    return found


# Pods with resources of their own, on a node that tells that it manages them (`pod-level-resource-managers`, P6 to P14)


def own(pod) -> dict[str, Fraction]:
    given = pod["spec"].get("resources") or {}
    amounts = {**quantities(given.get("limits")), **quantities(given.get("requests"))}
    return {name: amount for name, amount in amounts.items() if affine(name)}


def manages_pods(nrt) -> bool:
    told = [
        one["value"]
        for one in nrt.get("attributes") or []
        if one["name"] == "nri-pin/podLevelResourceManagers"
    ]
    return told[-1:] == ["true"]


def bound(amounts) -> dict[str, Fraction]:
    """A part of a CPU is bound to no node."""
    return {name: amount for name, amount in amounts.items() if name != "cpu" or amount.denominator == 1}


def eligible(one) -> bool:
    return all(0 < asked(one).get(name, 0) == limited(one).get(name, 0) for name in ("cpu", "memory"))


def beside(pod, name) -> Fraction:
    """What the pod asks for of one resource: sidecars stay."""
    stays = most = Fraction(0)
    for one in init_containers(pod):
        amount = asked(one).get(name, Fraction(0))
        most = max(most, stays + amount)
        stays += amount if is_sidecar(one) else 0
    stays += sum(asked(one).get(name, Fraction(0)) for one in app_containers(pod))
    return max(stays, most) + quantities(pod["spec"].get("overhead")).get(name, Fraction(0))


def seen(pod, nrt):
    """The pod as a node without such pods would have to be told of it."""
    if not own(pod) or not manages_pods(nrt):
        return pod
    of_pod = qos(pod)
    everyone = init_containers(pod) + app_containers(pod)
    if configured(nrt)[1] == "pod":
        names = {name for one in everyone for name in asked(one)} | set(pod["spec"].get("overhead") or {})
        request = {name: beside(pod, name) for name in names if not affine(name)} | bound(own(pod))
        spec = {"containers": [rewritten({}, request)]}
    else:
        spec = {part: [] for part in ("initContainers", "containers")}
        for part, rows in spec.items():
            for one in pod["spec"].get(part) or []:
                request = {name: amount for name, amount in asked(one).items() if not affine(name)}
                if of_pod == "Guaranteed" and eligible(one):
                    request |= bound({name: amount for name, amount in asked(one).items() if affine(name)})
                rows.append(rewritten(one, request))
    return {"metadata": pod["metadata"], "spec": spec, "status": {"qosClass": of_pod}}


def rewritten(one, request):
    texts = {name: f"{whole(amount * 10**9)}n" for name, amount in request.items()}
    return {**one, "resources": {"requests": texts}}


# 2.5, 2.6 Filter

ALWAYS = ("cpu", "memory", "pods", "ephemeral-storage")


def fits(request, numas, allocatable, pod_qos):
    """The NUMA id, or None."""
    ids, seen = None, set(range(10**4))
    for name, amount in request.items():
        if amount == 0:
            continue
        if name not in ALWAYS and name not in allocatable:
            return None
        listing = [one for one in numas if name in one["resources"]]
        if not listing and host_level(name):
            continue
        free = pod_qos != "Guaranteed" and affine(name)
        ids = {one["id"] for one in listing if free or one["resources"][name] >= amount}
        seen &= ids
        if not seen:
            return None
    return min(seen)


def filtered(pod, nrt, allocatable, highest=63) -> str:
    """`pass`, or the kind of the first thing that does not fit."""
    of_pod = qos(pod)
    if of_pod == "BestEffort" and not wants_devices(pod):
        return "pass"
    if nrt is None:
        return "pass"
    policy, scope, _ = configured(nrt)
    if policy != "single-numa-node":
        return "pass"
    pod = seen(pod, nrt)
    numas = numa_list(nrt, highest)
    if scope == "container":
        return by_container(pod, numas, allocatable, of_pod)
    return "pass" if fits(effective(pod), numas, allocatable, of_pod) is not None else "pod"


def by_container(pod, numas, allocatable, of_pod) -> str:
    """Init containers one after another, then app containers beside each other."""
    for one in init_containers(pod):
        if fits(asked(one), numas, allocatable, of_pod) is None:
            return "sidecar-container" if is_sidecar(one) else "init-container"
    for one in app_containers(pod):
        number = fits(asked(one), numas, allocatable, of_pod)
        if number is None:
            return "app-container"
        for numa in numas:
            if numa["id"] == number:
                charge(numa["resources"], asked(one), of_pod)
    return "pass"


def charge(have, request, of_pod) -> None:
    for name, amount in request.items():
        if name in have and not (of_pod != "Guaranteed" and affine(name)):
            have[name] -= amount


# 3.1 Scores of zones


def zone_score(kind, weights, request, have) -> int:
    if kind == "BalancedAllocation":
        return balanced(request, have)
    scores, weighed = 0, 0
    for name, amount in request.items():
        weight = max(weights.get(name, 1), 1)
        there = have.get(name, Fraction(0))
        if there == 0 or amount > there:
            score = 0
        elif kind == "LeastAllocated":
            score = (whole(there) - whole(amount)) * 100 // whole(there)
        else:
            score = whole(amount) * 100 // whole(there)
        scores += score * weight
        weighed += weight
    return scores // weighed if weighed else 0


def balanced(request, have) -> int:
    fractions = []
    for name, amount in request.items():
        there = have.get(name, Fraction(0))
        fractions.append(whole(amount) / whole(there) if there else 1.0)
    if any(one > 1 for one in fractions):
        return 0
    if len(fractions) < 2:
        return 100
    total = 0.0
    for one in fractions:
        total += one
    mean, squares, apart = total / len(fractions), 0.0, 0.0
    for one in fractions:
        squares += (one - mean) * (one - mean)
        apart += one - mean
    variance = (squares - apart * apart / len(fractions)) / (len(fractions) - 1)
    return math.trunc((1 - variance) * 100)


def worst(kind, weights, request, numas) -> int:
    scores = [zone_score(kind, weights, request, one["resources"]) for one in numas]
    return min((one for one in scores if one), default=0)


# 3.2 LeastNUMANodes


def single(value) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def average(numas, positions) -> float:
    total = 0.0
    for one in positions:
        for other in positions:
            total = single(total + numas[one]["costs"].get(numas[other]["id"], 255))
    return single(total / len(positions) ** 2)


def numa_nodes_required(numas, request, pod_qos):
    """(positions, whether nothing is closer), or None."""
    for size in range(1, len(numas) + 1):
        least, found = 255.0, []
        for positions in itertools.combinations(range(len(numas)), size):
            distance = average(numas, positions)
            least = min(least, distance)
            if all(name in numas[at]["resources"] for at in positions for name in request) and all(
                (pod_qos != "Guaranteed" and affine(name))
                or sum(numas[at]["resources"][name] for at in positions) >= amount
                for name, amount in request.items()
                if amount
            ):
                found.append((distance, positions))
        if found:
            exact = [positions for distance, positions in found if distance == least]
            if exact:
                return exact[0], True
            return min(found, key=lambda one: one[0])[1], False
    return None


def least_numa(pod, nrt, highest=63) -> int:
    _, scope, most = configured(nrt)
    numas = numa_list(nrt, highest)
    requests = (
        [effective(pod)] if scope == "pod" else [asked(o) for o in init_containers(pod) + app_containers(pod)]
    )
    count, close = 0, True
    for request in requests:
        if not any(name in one["resources"] for one in numas for name in request):
            continue
        found = numa_nodes_required(numas, request, qos(pod))
        if found is None:
            return 0
        count, close = max(count, len(found[0])), close and found[1]
        drain(numas, sorted(found[0], key=lambda at: numas[at]["id"]), request)
    return normalised(count, most, close) if count else 100


def drain(numas, positions, request) -> None:
    for name, amount in request.items():
        left = amount
        for at in positions:
            have = numas[at]["resources"].get(name)
            if have is None:
                continue
            given = max(Fraction(0), min(have, left))
            numas[at]["resources"][name] -= given
            left -= given


def normalised(count, most, close) -> int:
    unit = 100 // most
    return 100 - count * unit + (unit // 2 if close else 0)


def score(pod, nrt, kind, weights, highest=63) -> int:
    if qos(pod) != "Guaranteed":
        return 100
    if nrt is None:
        return 0
    pod = seen(pod, nrt)
    if kind == "LeastNUMANodes":
        return least_numa(pod, nrt, highest)
    policy, scope, _ = configured(nrt)
    if policy != "single-numa-node":
        return 0
    numas = numa_list(nrt, highest)
    if scope == "pod":
        return worst(kind, weights, effective(pod), numas)
    scores = [worst(kind, weights, asked(one), numas) for one in init_containers(pod) + app_containers(pod)]
    return int(Fraction(sum(scores), len(scores))) if scores else 0


# 2.8 The over-reserve cache, and 1.6 the fingerprint


def over_reserved(nrt, pods, highest=63):
    """Available by zone name and resource, every zone charged with everything that is asked for."""
    charges = {}
    for pod in {(p["metadata"].get("namespace"), p["metadata"]["name"]): p for p in pods}.values():
        for name, amount in effective(pod).items():
            charges[name] = charges.get(name, 0) + amount
    return {
        f"node-{one['id']}": {
            name: max(Fraction(0), have - charges[name]) if name in charges else have
            for name, have in one["resources"].items()
        }
        for one in numa_list(nrt, highest)
    }


ONES = 2**64 - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotated(value, bits):
    return ((value << bits) | (value >> (64 - bits))) & ONES


def _round(lane, word):
    return _rotated((lane + word * P2) & ONES, 31) * P1 & ONES


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification has it."""
    at, size = 0, len(data)
    if size >= 32:
        lanes = [(seed + P1 + P2) & ONES, (seed + P2) & ONES, seed, (seed - P1) & ONES]
        while at + 32 <= size:
            words = struct.unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        value = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & ONES
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * P1 + P4) & ONES
    else:
        value = (seed + P5) & ONES
    value = (value + size) & ONES
    while at + 8 <= size:
        value ^= _round(0, struct.unpack_from("<Q", data, at)[0])
        value = (_rotated(value, 27) * P1 + P4) & ONES
        at += 8
    if at + 4 <= size:
        value ^= struct.unpack_from("<I", data, at)[0] * P1 & ONES
        value = (_rotated(value, 23) * P2 + P3) & ONES
        at += 4
    while at < size:
        value ^= data[at] * P5 & ONES
        value = _rotated(value, 11) * P1 & ONES
        at += 1
    value = (value ^ (value >> 33)) * P2 & ONES
    value = (value ^ (value >> 29)) * P3 & ONES
    return value ^ (value >> 32)


def fingerprint(pods) -> str:
    """Of (namespace, name) pairs."""
    hashes = sorted(xxh64(name.encode(), xxh64(namespace.encode(), 0)) for namespace, name in pods)
    return f"pfp0v001{xxh64(b''.join(struct.pack('<Q', one) for one in hashes), 0):016x}"
