from tests.lab.runtime.profile import BEHAVIOURS


def test_every_runtime_can_be_named() -> None:
    assert list(BEHAVIOURS) == ["containerd-1.7", "containerd-2.1", "containerd-2.4", "cri-o"]
    assert all(name == behaviour.name for name, behaviour in BEHAVIOURS.items())


def test_only_what_was_watched_says_so() -> None:
    watched = [name for name, behaviour in BEHAVIOURS.items() if behaviour.was_watched]
    assert watched == ["containerd-1.7", "containerd-2.1"]


def test_cri_o_is_the_one_that_is_not_containerd() -> None:
    assert [name for name, each in BEHAVIOURS.items() if not each.is_containerd] == ["cri-o"]
