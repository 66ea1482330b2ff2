"""Following objects through everything that an API server does to a watch."""

from collections.abc import Callable, Sequence

import pytest

from nri_plugin.kube import api_client
from nri_plugin.kube.api_client import NODE_RESOURCE_TOPOLOGIES as NRTS
from nri_plugin.kube.api_client import NODES, APIResource, KubeClient, Object
from nri_plugin.kube.watch import Follower, WatchBackoff
from nri_plugin.model.errors import KubeAPIError
from tests.kube_api_exchanges import crd
from tests.kube_api_server import KubeAPI


class Diary:
    """A sink that notes what it is told, and a pause that lets a script go on and then stops."""

    def __init__(self, script: Sequence[object]) -> None:
        self.notes: list[str] = []
        self.pauses: list[float] = []
        self.script = list(script)
        self.is_over = False

    def listed(self, objects: Sequence[Object]) -> None:
        self.notes.append(f"listed {' '.join(names(objects))}".strip())

    def changed(self, obj: Object) -> None:
        self.notes.append(f"changed {obj['metadata']['name']}")

    def deleted(self, obj: Object) -> None:
        self.notes.append(f"deleted {obj['metadata']['name']}")

    def failed(self, error: KubeAPIError) -> None:
        self.notes.append(f"failed {error.status}")

    def pause(self, seconds: float) -> bool:
        if not seconds or self.is_over:
            return self.is_over
        self.pauses.append(seconds)
        if not self.script:
            self.is_over = True
            return True
        step = self.script.pop(0)
        step()  # type: ignore[operator]
        return False


def names(objects: Sequence[Object]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def node(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {}}


@pytest.fixture
def api(api: KubeAPI) -> KubeAPI:
    api.behaviour.ends_watches_at_once = True
    return api


def follow(
    api: KubeAPI, tmp_path, *script: object, resource: APIResource = NODES, read: Callable | None = None
) -> Diary:
    diary = Diary(script)
    client = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    Follower(client, resource, diary, diary.pause, backoff=WatchBackoff(draw=lambda: 1.0), read=read).run()
    client.close()
    return diary


def test_changes_follow_the_list(api: KubeAPI, tmp_path) -> None:
    api.put(node("a"))
    diary = follow(api, tmp_path, lambda: api.put(node("b")), lambda: None)
    assert diary.notes == ["listed a", "changed b"]
    assert sum("limit" in asked.query for asked in api.asked) == 1


def test_a_list_is_told_as_it_is_read_page_by_page(
    api: KubeAPI, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "PAGE_ITEMS", 2)
    for name in "abc":
        api.put(node(name))
    diary = follow(api, tmp_path, read=lambda obj: {"metadata": {"name": obj["metadata"]["name"].upper()}})
    assert diary.notes[0] == "listed A B C"


def test_a_watch_that_ends_at_once_is_not_asked_in_a_circle(api: KubeAPI, tmp_path) -> None:
    diary = follow(api, tmp_path, lambda: None, lambda: None)
    assert diary.pauses == [1.0, 2.0, 4.0]


def test_a_forgotten_version_is_listed_again(api: KubeAPI, tmp_path) -> None:
    def forget() -> None:
        api.put(node("b"))
        api.store.compact()

    diary = follow(api, tmp_path, forget, lambda: None)
    assert diary.notes == ["listed", "listed b"]


def test_a_broken_connection_goes_on_where_it_was(api: KubeAPI, tmp_path) -> None:
    def break_off() -> None:
        api.behaviour.fail_next.append((503, {}))

    diary = follow(api, tmp_path, break_off, lambda: api.put(node("b")), lambda: None)
    assert diary.notes[:2] == ["listed", "failed 503"]
    assert "listed b" in diary.notes or "changed b" in diary.notes


def test_an_unexpected_error_is_reported_and_everything_is_listed_again(api: KubeAPI, tmp_path) -> None:
    """Errors of the sink, of what reads the objects, and of the sink's report of a failure."""
    api.put(node("a"))
    faults: list[str] = []
    diary = Diary([lambda: None, lambda: api.put(node("b")), lambda: None, lambda: None])
    raising: list[str] = ["read", "changed", "failed"]

    def fault_at(place: str) -> None:
        if place in raising[:1]:
            raising.pop(0)
            if raising == ["failed"]:
                api.behaviour.fail_next.append((503, {}))
            raise ZeroDivisionError(place)

    class Faulty(Diary):
        def changed(self, obj: Object) -> None:
            fault_at("changed")
            super().changed(obj)

        def failed(self, error: KubeAPIError) -> None:
            fault_at("failed")
            super().failed(error)

    def read(obj: Object) -> Object:
        fault_at("read")
        return obj

    diary = Faulty([lambda: api.put(node("b")), lambda: None, lambda: None, lambda: None, lambda: None])
    client = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    api.behaviour.ends_watches_at_once = True
    Follower(
        client,
        NODES,
        diary,
        diary.pause,
        backoff=WatchBackoff(draw=lambda: 1.0),
        read=read,
        fault=faults.append,
    ).run()
    client.close()
    assert diary.notes[-1] == "listed a b"
    assert len(faults) == 3 - len(raising)
    assert len(faults) >= 1


def test_a_kind_that_comes_later_is_picked_up(tmp_path) -> None:
    api = KubeAPI()
    api.behaviour.ends_watches_at_once = True
    diary = follow(api, tmp_path, lambda: None, lambda: api.define(crd()), resource=NRTS)
    assert diary.notes == ["failed 404", "failed 404", "listed"]
    api.close()


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(api: KubeAPI, tmp_path) -> None:
    api.behaviour.fail_next.append((429, {"Retry-After": "33"}))
    assert follow(api, tmp_path).pauses == [33.0]
