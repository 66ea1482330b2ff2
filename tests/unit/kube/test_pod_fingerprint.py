"""Fingerprints others compute too."""

from nri_plugin.kube.noderesourcetopology import fingerprint, of_hashes, pod_hash


def test_known_fingerprints():
    assert fingerprint([]) == "pfp0v001ef46db3751d8e999"
    assert fingerprint([("namespace1", "pod1")]) == "pfp0v0019e0420efb37746c6"


def test_order_does_not_matter_and_hashes_can_be_kept():
    pods = [("a", "x"), ("b", "y"), ("c", "z")]
    assert fingerprint(pods) == fingerprint(reversed(pods)) == of_hashes(pod_hash(*one) for one in pods)
