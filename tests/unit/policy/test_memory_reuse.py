"""Memory handed on inside a pod."""

from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.memory_state import shrink_reused
from tests.oracles.manager_steps import reuse_after, reuse_without


def block(mask, size, resource="memory"):
    return MemoryBlock(NodeMask(mask), resource, size)


KEY = (0b01, "memory")


def test_plain_init_containers_leave_the_largest_of_their_amounts():
    assert reuse_after({}, [block(1, 5)], init=True) == {KEY: 5}
    assert reuse_after({KEY: 5}, [block(1, 3)], init=True) == {KEY: 5}
    assert reuse_after({KEY: 5}, [block(1, 9)], init=True) == {KEY: 9}


def test_other_containers_use_it_up():
    assert reuse_after({KEY: 5}, [block(1, 3)], init=False) == {KEY: 2}
    assert reuse_after({KEY: 5}, [block(1, 9)], init=False) == {KEY: 0}


def test_masks_and_resources_are_kept_apart():
    after = reuse_after({KEY: 5}, [block(2, 3), block(1, 3, "hugepages-2Mi")], init=False)
    assert after[KEY] == 5


def test_the_amount_goes_with_its_container():
    assert reuse_without({KEY: 5}, [block(1, 3)]) == {KEY: 2}
    assert reuse_without({KEY: 2}, [block(1, 3)]) == {KEY: 0}


def test_earlier_init_containers_shrink_by_what_was_taken_over():
    earlier = [[block(1, 4)], [block(1, 5), block(2, 5)]]
    assert shrink_reused(earlier, [block(1, 6)]) == [(block(1, 0),), (block(1, 3), block(2, 5))]


def test_nothing_shrinks_for_another_mask():
    assert shrink_reused([[block(1, 4)]], [block(3, 6)]) == [(block(1, 4),)]


def test_a_container_of_nothing_leaves_nothing():
    assert reuse_after({}, [block(1, 0)], init=True) == {KEY: 0}
    assert reuse_after({}, [block(1, 0)], init=False) == {KEY: 0}
    assert reuse_without({}, [block(1, 0)]) == {KEY: 0}
