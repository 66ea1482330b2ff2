"""The subscription each runtime takes; one bit more and it closes without a word."""

import pytest

from nri_plugin.wire.nri.events import Configure, EventMask
from nri_plugin.wire.nri.releases import is_before_0_7, legal_mask

OLD, ALL = 0x07FF, 0x1FFF

CASES = [
    # runtime, version, tells timeouts, NRI version, legal, why
    ("containerd", "1.7.24~ds1", False, "", OLD, "0.6.1 as Debian names it"),
    ("containerd", "1.7.24+unknown", False, "", OLD, "0.6.1 built by hand"),
    ("containerd", "v1.7.27", True, "", OLD, "0.8.0"),
    ("containerd", "v2.0.4", True, "", OLD, "0.8.0"),
    ("containerd", "v2.1.9", True, "", OLD, "0.8.0"),
    ("containerd", "v2.2.0-beta.1", True, "", OLD, "a pre-release may still have the older library"),
    ("containerd", "v2.2.0", True, "", ALL, "0.10.0"),
    ("containerd", "v2.2.1-rc.0", True, "", ALL, "a pre-release of a patch is past the minor release"),
    ("containerd", "v2.10.0", True, "", ALL, "versions are numbers"),
    ("containerd", "v2.3.1", True, "v0.12.0", ALL, "0.12 tells"),
    ("containerd", "v2.4.0-beta.0", True, "0.0.0-unknown", ALL, "telling anything is 0.12"),
    ("cri-o", "1.31.2", False, "", OLD, "0.6.1"),
    ("cri-o", "1.32.0", True, "", OLD, "0.9.0"),
    ("cri-o", "1.33.4", True, "", ALL, "0.9.1 before its release"),
    ("cri-o", "1.34.0", True, "", ALL, "0.10.0"),
    ("cri-o", "1.36.3", True, "", ALL, "0.11.0"),
    ("cri-o", "1.37.0", True, "(devel)", ALL, "0.12.0"),
    ("containerd", "v2.2.0", False, "", OLD, "no timeouts told is below 0.7 whatever the rest says"),
    ("containerd", "unknown", True, "", OLD, "in doubt the smallest set"),
    ("moby", "29.0.0", True, "", OLD, "a runtime we do not know"),
]


@pytest.mark.parametrize(("name", "version", "tells", "nri", "legal", "why"), CASES)
def test_legal_mask(name, version, tells, nri, legal, why):
    timeouts = (5000, 2000) if tells else (0, 0)
    assert legal_mask(Configure("", name, version, *timeouts, nri)) == EventMask(legal), why


def test_before_0_7_is_told_by_missing_timeouts():
    assert is_before_0_7(Configure("", "containerd", "1.7.24"))
    assert not is_before_0_7(Configure("", "containerd", "2.1.9", 5000, 2000))
    assert not is_before_0_7(Configure("", "containerd", "2.4.0", 0, 0, "v0.12.2"))
