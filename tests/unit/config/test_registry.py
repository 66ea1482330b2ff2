"""Each option is one row, and nothing that lists options is without it."""

from dataclasses import fields

import pytest

from nri_plugin.config.keys import FLAGS, KEYS, SETTING_KEYS, Settings
from nri_plugin.model.option_rows import OWN_ATTRIBUTES, Level
from nri_plugin.model.options import OPTION_BY_NAME, REGISTRY, Options
from tests.option_texts import SCHEMA, config_schema, guide, guide_tables, guide_text, schema_text, sentences

ROWS = pytest.mark.parametrize("row", REGISTRY.values(), ids=lambda row: row.name)


def test_the_chart_has_the_schema_that_the_rows_make() -> None:
    assert SCHEMA.read_text() == schema_text(), "run hack/gen-options"


def test_the_guide_has_the_tables_that_the_rows_make() -> None:
    assert guide().read_text() == guide_text(), "run hack/gen-options"


def test_the_schema_and_the_tables_name_every_option_that_can_be_chosen() -> None:
    schema = str(config_schema())
    for name, row in OPTION_BY_NAME.items():
        assert (f"'{name}'" in schema, f"`{name}`" in guide_tables()) == (not row.is_derived,) * 2


@ROWS
def test_every_row_is_a_sentence_with_names_that_exist(row) -> None:
    assert sentences(Options)[row.attribute].endswith(".")
    assert row.attribute in {one.name for one in fields(Options)}
    assert {OPTION_BY_NAME[name].manager for name in row.excludes} <= {row.manager}
    assert (row.level is Level.OWN) <= (row.manager is None)


def test_names_and_attributes_are_unique() -> None:
    assert len(OPTION_BY_NAME) == len(REGISTRY)
    alone = [row.published for row in REGISTRY.values() if row.published and row.manager is None]
    assert len(set(alone)) == len(alone)


def test_attributes_of_our_own_carry_our_prefix() -> None:
    published = {row.published for row in REGISTRY.values() if row.published}
    foreign = {name for name in published if not name.startswith(OWN_ATTRIBUTES)}
    assert foreign == {"topologyManagerPolicy", "topologyManagerScope"}


def test_every_setting_is_a_key_with_a_sentence() -> None:
    apart = {"options", "sections"}
    assert {one.attribute for one in SETTING_KEYS.values()} == {one.name for one in fields(Settings)} - apart
    assert all(text.endswith(".") for text in sentences(Settings).values())
    assert set(sentences(Settings)) == {one.attribute for one in SETTING_KEYS.values()}


def test_the_flags_of_the_kubelet_stand_in_for_keys() -> None:
    kubelet = {flag: name for flag, name in FLAGS.items() if flag.startswith(("--cpu-", "--topology-"))}
    assert kubelet == {
        "--cpu-manager-policy": "cpuManagerPolicy",
        "--topology-manager-policy": "topologyManagerPolicy",
        "--topology-manager-scope": "topologyManagerScope",
        "--cpu-manager-policy-options": "cpuManagerPolicyOptions",
        "--topology-manager-policy-options": "topologyManagerPolicyOptions",
    }
    assert set(FLAGS.values()) <= set(KEYS)
