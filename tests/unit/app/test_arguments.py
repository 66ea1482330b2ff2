from pathlib import Path

import pytest

from nri_plugin.app.arguments import HELP, OPTIONS, Arguments, parse
from nri_plugin.app.config import DEFAULT_PATH, load_text
from nri_plugin.app.config_flags import FLAGS
from nri_plugin.errors import ConfigError


def test_no_words_mean_the_default_file_and_nothing_else():
    assert parse([]) == Arguments(DEFAULT_PATH, {})


@pytest.mark.parametrize(
    "words", [["--config", "a.yaml", "--nri-socket", "/s"], ["--config=a.yaml", "--nri-socket=/s"]]
)
def test_values_follow_a_space_or_an_equals_sign(words: list[str]):
    assert parse(words) == Arguments("a.yaml", {"nri_socket": "/s"})


def test_the_last_of_two_wins():
    assert parse(["--plugin-index", "10", "--plugin-index", "20"]).overrides == {"plugin_index": "20"}


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_wins_over_everything_after_it(word: str):
    assert parse([word, "--nonsense"]).wants_help


@pytest.mark.parametrize(
    ("words", "where", "detail"),
    [
        (["--nope"], "--nope", "no such option"),
        (["run"], "run", "no such option"),
        (["--state-dir"], "--state-dir", "needs a value"),
        (["--state-dir="], "--state-dir", "needs a value"),
        (["--log-format", "xml"], "--log-format", "expected text, json; found xml"),
        (["--log-level=loud"], "--log-level", "expected debug, info, warning, error; found loud"),
    ],
)
def test_a_wrong_word_names_the_option_and_what_was_expected(words: list[str], where: str, detail: str):
    with pytest.raises(ConfigError, match=detail) as caught:
        parse(words)
    assert caught.value.where == where


def test_overrides_replace_what_the_file_says():
    config = load_text('reservedSystemCPUs: "0"\nstateDir: /a\n', "test")
    changed = parse(["--state-dir", "/b", "--sysfs-root", "/host"]).apply(config)
    assert (changed.state_dir, changed.sysfs_root, changed.options) == ("/b", "/host", config.options)


def test_every_option_is_in_the_help_and_every_override_is_an_attribute_of_the_configuration():
    config = load_text('reservedSystemCPUs: "0"\n', "test")
    for name, attribute in OPTIONS.items():
        assert f"  {name} " in HELP
        assert attribute == "config" or hasattr(config, attribute)


STATIC = 'reservedSystemCPUs: "0"\ncpuManagerPolicyOptions: {strict-cpu-reservation: "true"}\n'


def test_the_flags_of_the_kubelet_win_over_the_file(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text(STATIC + "topologyManagerPolicy: restricted\n", encoding="utf-8")
    words = ["--cpu-manager-policy=static", "--cpu-manager-policy-options", "full-pcpus-only=true"]
    words += ["--topology-manager-policy", "best-effort", "--topology-manager-scope", "pod"]
    words += ["--topology-manager-policy-options=max-allowable-numa-nodes=16,prefer-closest-numa-nodes=1"]
    options = parse(["--config", str(file), *words]).load().options
    assert (options.full_pcpus_only, options.strict_cpu_reservation) == (True, False)
    assert (options.topology_manager_policy, options.topology_manager_scope) == ("best-effort", "pod")
    assert (options.max_allowable_numa_nodes, options.prefer_closest_numa_nodes) == (16, True)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"--cpu-manager-policy": "dynamic"}, "--cpu-manager-policy: expected none or static, found dynamic"),
        (
            {"--cpu-manager-policy-options": "full-pcpus-only"},
            "--cpu-manager-policy-options: expected name=value",
        ),
        (
            {"--cpu-manager-policy-options": "full-pcpu-only=1"},
            "full-pcpu-only: unknown key; did you mean full-",
        ),
        (
            {"--cpu-manager-policy-options": "full-pcpus-only=on"},
            "full-pcpus-only: expected true or false, found on",
        ),
        (
            {"--cpu-manager-policy-options": "align-by-socket=true"},
            "--cpu-manager-policy-options: CPU Manager Policy Alpha-level Options not enabled",
        ),
    ],
)
def test_flags_pass_the_same_checks_as_the_file(flags: dict[str, str], error: str):
    with pytest.raises(ConfigError) as caught:
        load_text(STATIC, "f", flags)
    assert error in str(caught.value)


def test_every_flag_is_in_the_help():
    assert [flag for flag in FLAGS if flag not in HELP] == []
