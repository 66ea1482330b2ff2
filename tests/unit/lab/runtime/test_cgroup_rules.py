from tests.lab.runtime.cgroup_tree import RULES, V1, V2, Write, verdict


def a_write(**changes: object) -> Write:
    values: dict[str, object] = {
        "is_root": False,
        "wanted": 0b1,
        "current": 0b11,
        "top": 0b11,
        "parent": 0b11,
        "children": 0,
        "ids": 2,
        "is_populated": True,
    }
    return Write(**(values | changes))  # type: ignore[arg-type]


def name_of(version: int, write: Write) -> str:
    rule = verdict(version, write)
    return rule.name if rule else ""


def test_a_plain_write_is_accepted_by_both_versions() -> None:
    assert name_of(V1, a_write()) == name_of(V2, a_write()) == ""


def test_the_earlier_rule_gives_the_error() -> None:
    assert name_of(V1, a_write(wanted=0b100, children=0b1)) == "range"
    assert name_of(V1, a_write(wanted=0, children=0b1)) == "children"
    assert name_of(V2, a_write(wanted=0, children=0b1)) == "clearing"


def test_v2_lets_a_child_name_what_its_parent_lacks() -> None:
    assert name_of(V2, a_write(parent=0b10)) == ""
    assert name_of(V1, a_write(parent=0b10)) == "parent"


def test_every_rule_has_a_name_of_its_own_and_a_sentence() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(" " in rule.sentence for rule in RULES)
