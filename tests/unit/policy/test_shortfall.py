from nri_plugin.policy.hints import by_numa_node


def told(free: dict[int, int], total: dict[int, int] | None = None) -> str:
    return by_numa_node(
        {node: f"{amount} free" for node, amount in free.items()}, free, total or dict.fromkeys(free, 9)
    )


def test_up_to_eight_nodes_are_listed_in_their_order():
    assert told({0: 0, 3: 2}) == "by NUMA node 0: 0 free, 3: 2 free"
    assert told(dict.fromkeys(range(8), 0)).count("free") == 8
    assert "more" not in told(dict.fromkeys(range(8), 0))


def test_of_more_than_eight_those_with_something_go_first_and_the_rest_is_counted():
    free = dict.fromkeys(range(40), 0) | {17: 3, 38: 1}
    assert told(free) == (
        "by NUMA node 17: 3 free, 38: 1 free, 0: 0 free, 1: 0 free, 2: 0 free, 3: 0 free, 4: 0 free, 5: 0 free, "
        "and 32 more"
    )


def test_nodes_that_never_have_any_are_not_listed():
    assert told({0: 1, 2: 0, 3: 0}, {0: 4, 2: 0, 3: 4}) == "by NUMA node 0: 1 free, 3: 0 free"
    assert told({0: 0}, {0: 0}) == "by NUMA node: none has any"
