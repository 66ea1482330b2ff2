"""nrt/overreserve_*: what the scheduler plugin's cache makes of a node, step by step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nri_plugin.extender.nodes import Zones, node_policy
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, from_object, zone_name
from nri_plugin.kube.pod_demand import PodDemand, pod_demand
from tests.oracles.over_reserve import OverReserve, ResyncMethod, ResyncScope
from tests.vectors.judges.scheduling import amounts, each
from tests.vectors.judges.verdict import Case, Judged, Verdict, compare


def by_zone(zones: Zones) -> dict[str, dict[str, int]]:
    return {zone_name(zone.id): dict(zone.available) for zone in zones}


@each
def judge_arithmetic(case: Case) -> Judged:
    cache = OverReserve(from_object(case["nrt"]))
    for pod in case["assumedPods"] or ():
        cache = cache.reserved(pod_demand(pod))
    recorded = {zone: amounts(have) for zone, have in case["expect"]["available"].items()}
    return compare(case["id"], by_zone(cache.zones()), recorded)


@dataclass(frozen=True)
class Story:
    """One node's life: the cache, what the API holds, who is there, how many rounds took something over."""

    cache: OverReserve
    live: NodeResourceTopology
    config: Case
    pods: Mapping[str, PodDemand] = field(default_factory=dict)
    listed: tuple[PodDemand, ...] = ()
    generation: int = 0


@each
def judge_traces(case: Case) -> Judged:
    initial = from_object(case["initialNRT"])
    return _judged(case, Story(OverReserve(initial), initial, case["config"]))


def _judged(case: Case, story: Story) -> Judged:
    for number, step in enumerate(case["steps"]):
        story = STEPS[step["op"]](story, step)
        ours, recorded = _seen(story), _told(step["after"])
        if ours != recorded:
            return compare(f"{case['id']} step {number} {step['op']}", ours, recorded)
    return Judged(case["id"], Verdict.PASSED)


def _seen(story: Story) -> Case:
    cache = story.cache
    return {
        "fresh": cache.is_fresh,
        "generation": story.generation,
        "dirty": cache.is_dirty,
        "configChanged": cache.is_changed,
        "available": by_zone(cache.zones()) if cache.is_fresh else None,
        "policy": node_policy(cache.cached).policy.value if cache.is_fresh else None,
    }


def _told(after: Case) -> Case:
    available = after["available"]
    told = available and {zone: amounts(have) for zone, have in available.items()}
    return {**after, "available": told, "policy": after.get("policy")}


def _reserve(story: Story, step: Case) -> Story:
    pod = pod_demand(step["pod"])
    pods = {**story.pods, f"{pod.namespace}/{pod.name}": pod}
    return replace(story, cache=story.cache.reserved(pod), pods=pods)


def _unreserve(story: Story, step: Case) -> Story:
    namespace, _, name = step["pod"].partition("/")
    return replace(story, cache=story.cache.unreserved((namespace, name)))


def _foreign(story: Story, step: Case) -> Story:
    pod = pod_demand(step["pod"])
    return replace(story, cache=story.cache.met_foreign_pod(), listed=(*story.listed, pod))


def _running(story: Story, step: Case) -> Story:
    return replace(story, listed=(*story.listed, story.pods[step["pod"]]))


def _published(story: Story, step: Case) -> Story:
    live = from_object(step["nrt"])
    if not step.get("watchEventDelivered"):
        return replace(story, live=live)
    scope = ResyncScope(story.config["resyncScope"])
    return replace(story, live=live, cache=story.cache.observed(live, scope))


def _resync(story: Story, _: Case) -> Story:
    method = ResyncMethod(story.config["resyncMethod"])
    cache = story.cache.resynced(story.live, story.listed, method)
    return replace(story, cache=cache, generation=story.generation + (cache is not story.cache))


STEPS: Mapping[str, Callable[[Story, Case], Story]] = {
    "reserve": _reserve,
    "unreserve": _unreserve,
    "filter-rejected": lambda story, _: replace(story, cache=story.cache.refused()),
    "foreign-pod-observed": _foreign,
    "pod-running": _running,
    "nrt-published": _published,
    "resync": _resync,
}
