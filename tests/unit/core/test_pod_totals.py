"""Peak of a pod."""

import pytest

from nri_plugin.core.requests import pod_total


@pytest.mark.parametrize(
    ("inits", "apps", "total", "rule"),
    [
        ([], [2, 3], 5, "app containers run together"),
        ([(8, False), (4, False)], [2], 8, "plain init containers run one by one"),
        ([(3, True)], [2], 5, "restartable ones run beside the apps"),
        ([(3, True), (4, False)], [1], 7, "and beside the plain ones after them"),
        ([(4, False), (3, True)], [0], 4, "but not beside those before them"),
        ([(2, True), (3, True)], [1], 6, "all of them run on"),
        ([], [], 0, "nothing needs nothing"),
    ],
)
def test_pod_total(inits, apps, total, rule):
    assert pod_total(inits, apps) == total, rule
