"""Keys and flags change, and everything else stays."""

import json

import pytest

from nri_plugin.cli.migrate.kubelet import flag_values, with_flags, with_keys
from nri_plugin.model.errors import ConfigError

FILE = """\
# first
kind: KubeletConfiguration
cpuManagerPolicy: static  # since 2023
cpuManagerPolicyOptions:
  # whole cores
  full-pcpus-only: "true"

# a comment between
featureGates: {A: true}
clusterDNS:
- 10.0.0.1
"""


def test_a_scalar_keeps_its_comment() -> None:
    assert with_keys(FILE, {"cpuManagerPolicy": "none"}, "f") == FILE.replace("static", "none")


def test_a_removed_map_takes_its_lines_and_no_others() -> None:
    after = with_keys(FILE, {"cpuManagerPolicyOptions": None}, "f")
    gone = 'cpuManagerPolicyOptions:\n  # whole cores\n  full-pcpus-only: "true"\n'
    assert after == FILE.replace(gone, "")


def test_a_new_key_comes_last_also_without_a_newline_there() -> None:
    assert with_keys(FILE.rstrip(), {"reservedSystemCPUs": "0"}, "f") == FILE + "reservedSystemCPUs: '0'\n"


def test_a_map_is_replaced_where_it_stands() -> None:
    after = with_keys(FILE, {"featureGates": {"A": True, "B": False}}, "f")
    assert after == FILE.replace("featureGates: {A: true}\n", "featureGates:\n  A: true\n  B: false\n")


@pytest.mark.parametrize(
    "text",
    [
        "cpuManagerPolicy:\n",
        "cpuManagerPolicy: \n",
        "cpuManagerPolicy: null\n",
        "'cpuManagerPolicy':   \"static\" # x\n",
    ],
)
def test_every_form_of_a_value_is_replaced(text: str) -> None:
    assert "none" in with_keys(text, {"cpuManagerPolicy": "none"}, "f")


def test_json_stays_json() -> None:
    after = with_keys('{"cpuManagerPolicy": "static", "maxPods": 9}', {"cpuManagerPolicy": "none"}, "f")
    assert json.loads(after) == {"cpuManagerPolicy": "none", "maxPods": 9}


def test_a_file_that_is_so_already_is_not_touched() -> None:
    assert with_keys(FILE, {"cpuManagerPolicy": "static", "x": None}, "f") is FILE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not YAML"),
        ("- a\n", "no table"),
        ("a: 1\n...\n", "cannot be changed in a file of this form"),
        ("? [a]\n: 1\n", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        with_keys(text, {"cpuManagerPolicy": "none"}, "f")


# ---- flags

ENVIRONMENT = """\
# --cpu-manager-policy=static is explained elsewhere
KUBELET_KUBEADM_ARGS="--cpu-manager-policy=static --cpu-manager-policy-options=full-pcpus-only=true --x=1"
"""


def test_a_flag_in_a_quoted_variable() -> None:
    changes = {"--cpu-manager-policy": "none", "--cpu-manager-policy-options": None}
    after = with_flags(ENVIRONMENT, changes, {}, "")
    assert after.splitlines()[1] == 'KUBELET_KUBEADM_ARGS="--cpu-manager-policy=none --x=1"'
    assert after.splitlines()[0] == ENVIRONMENT.splitlines()[0]
    assert flag_values(ENVIRONMENT, "--cpu-manager-policy") == ["static"]


def test_a_flag_that_comes_first_in_its_variable_is_removed() -> None:
    assert with_flags('A="--x=1 --y=2"\n', {"--x": None}, {}, "") == 'A="--y=2"\n'


def test_a_flag_with_a_blank_and_one_in_quotes() -> None:
    text = "ExecStart=/usr/bin/kubelet --cpu-manager-policy static \\\n  --feature-gates='A=true,B=false'\n"
    after = with_flags(text, {"--cpu-manager-policy": "none", "--feature-gates": "A=false"}, {}, "")
    assert after == "ExecStart=/usr/bin/kubelet --cpu-manager-policy none \\\n  --feature-gates='A=false'\n"
    assert flag_values(text, "--feature-gates") == ["A=true,B=false"]


def test_new_flags_follow_the_anchor() -> None:
    after = with_flags(ENVIRONMENT, {}, {"--reserved-cpus": "0"}, "--cpu-manager-policy")
    assert "--cpu-manager-policy=static --reserved-cpus=0 --cpu" in after
