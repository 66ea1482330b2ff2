"""The fingerprint of a set of pods, by which two programs agree that they mean the same set.

A pod is its namespace and name; the order does not matter.

Source: k8stopologyawareschedwg/podfingerprint, version 1.
"""

from collections.abc import Iterable

import xxhash

PREFIX = "pfp0v001"


def pod_hash(namespace: str, name: str) -> int:
    """64 bits of one pod; fingerprints of many sets of the same pods need it once."""
    seed = xxhash.xxh64_intdigest(namespace.encode(), 0)
    return xxhash.xxh64_intdigest(name.encode(), seed)


def of_hashes(hashes: Iterable[int]) -> str:
    """The fingerprint of pods given by their hashes."""
    joined = b"".join(one.to_bytes(8, "little") for one in sorted(hashes))
    return PREFIX + xxhash.xxh64_hexdigest(joined, 0)


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of pods given as (namespace, name)."""
    return of_hashes(pod_hash(namespace, name) for namespace, name in pods)
