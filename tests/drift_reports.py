"""Drift reports for tests of those who count and tell."""

from dataclasses import replace

from nri_plugin.agent.repair.drift_watch import DriftReport
from nri_plugin.core.drift import Cause
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet

REPORT = DriftReport(
    number=1,
    cgroup=CgroupRef("/pod", "/pod/c"),
    container_id="c",
    name="shop/web/c",
    found=CPUSet.parse("0-7"),
    effective=CPUSet.parse("0-7"),
    desired=CPUSet.of(1),
    cause=Cause.ALL_CPUS,
    noticed_by="watch",
    round=1,
    is_fight=False,
    next_after_s=0.5,
)


def drift(number: int = 1, noticed_by: str = "watch", error: str = "") -> DriftReport:
    return replace(REPORT, number=number, noticed_by=noticed_by, error=error)
