"""The kubelet's state files; all recorded ones are judged in tests/unit/policy/test_recorded_answers.py."""

import json

import pytest

from nri_plugin.checkpoint.kubelet_files import UnreadableError, checksum, cpu_v2, load_refusal, parse


def state(**changes):
    return json.dumps({"policyName": "static", "defaultCpuSet": "0-7", "checksum": 0, **changes}).encode()


def test_the_hash_is_fnv_1a_of_32_bits():
    assert checksum("") == 2166136261
    assert checksum("a") == 0xE40C292C
    assert checksum("foobar") == 0xBF9CF968


def test_a_file_with_its_hash_loads_and_with_another_does_not():
    record = {"policyName": "static", "defaultCpuSet": "0-7"}
    assert load_refusal(state(checksum=checksum(cpu_v2(record))), "cpu", "static") == ""
    assert load_refusal(state(checksum=1), "cpu", "static") == "checkpoint is corrupted"


def test_a_zero_hash_passes_in_the_forms_without_pods_only():
    assert load_refusal(state(), "cpu", "static") == ""
    newest = json.dumps({"policyName": "Static", "machineState": {}, "checksum": 0}).encode()
    assert load_refusal(newest, "memory", "Static", pod_level=True) == ""


def test_another_policy_is_refused():
    assert load_refusal(state(), "cpu", "none") == (
        'configured policy "none" differs from state checkpoint policy "static"'
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "unexpected end of JSON input"),
        (b'{"policyName": "sta', "unexpected end of JSON input"),
        (b"{]", "not JSON: expecting property name enclosed in double quotes"),
        (b"\xff", "not UTF-8 text"),
        (b"[]", "not a JSON object"),
    ],
)
def test_what_is_no_state_file_is_said_so(data, said):
    assert load_refusal(data, "cpu", "static") == said
    with pytest.raises(UnreadableError, match=said):
        parse(data)


@pytest.mark.parametrize("entries", [[1], "x", 3, {"p": [1]}, {"p": {"c": {}}}, {"p": None}])
@pytest.mark.parametrize("manager", ["cpu", "memory"])
@pytest.mark.parametrize("pod_level", [False, True])
def test_values_of_other_types_are_refused_not_crashed_on(entries, manager, pod_level):
    data = state(entries=entries, podEntries=entries, machineState=entries, checksum=1)
    assert load_refusal(data, manager, "static", pod_level=pod_level)


def test_keys_are_known_in_any_case_and_others_ignored():
    assert parse(b'{"POLICYNAME": "static", "other": 1}') == {"policyName": "static"}
