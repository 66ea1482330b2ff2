from pathlib import Path

import pytest

from nri_plugin.agent.arguments import Arguments, parse
from nri_plugin.config.loading import DEFAULT_PATH, Config, load_text
from nri_plugin.model.errors import ConfigError


def load_with(tmp_path: Path, *words: str) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text('reservedSystemCPUs: "0"\nstateDir: /a\n', encoding="utf-8")
    return parse(["--config", str(file), *words]).load()


def test_no_words_mean_the_default_file_and_nothing_else():
    assert parse([]) == Arguments(DEFAULT_PATH, {})


@pytest.mark.parametrize(
    "words", [["--config", "a.yaml", "--nri-socket", "/s"], ["--config=a.yaml", "--nri-socket=/s"]]
)
def test_values_follow_a_space_or_an_equals_sign(words: list[str]):
    assert parse(words) == Arguments("a.yaml", {"--nri-socket": "/s"})


def test_the_last_of_two_wins():
    assert parse(["--plugin-index", "10", "--plugin-index", "20"]).flags == {"--plugin-index": "20"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--nope"], "--nope: no such option of nri-pin run; see nri-pin run --help"),
        (["--conf", "x"], "--conf: no such option"),
        (["start"], "start: no such option"),
        (["--state-dir"], "--state-dir: expected one argument; see nri-pin run --help"),
        (["--state-dir="], "--state-dir: expected one argument, found nothing;"),
        (["--state-dir", "--config", "a"], "--state-dir: expected one argument;"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], error: str):
    with pytest.raises(ConfigError) as caught:
        parse(words)
    assert str(caught.value).startswith(error)


def test_options_win_over_what_the_file_says(tmp_path: Path):
    config = load_with(tmp_path, "--state-dir", "/b", "--sysfs-root", "/host", "--log-level=debug")
    assert (config.state_dir, config.sysfs_root, config.log_level) == ("/b", "/host", "debug")


def test_a_relative_path_is_taken_from_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    config = load_with(tmp_path, "--state-dir", "state", "--nri-socket=../nri.sock")
    assert config.state_dir == str(tmp_path / "state")
    assert config.nri_socket == str(tmp_path.parent / "nri.sock")


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("--plugin-index=5", '--plugin-index: expected two digits such as "90", found 5'),
        ("--plugin-name=a b", "--plugin-name: expected up to 63 letters"),
        ("--log-format=xml", "--log-format: expected text or json, found xml"),
        ("--log-level=loud", "--log-level: expected debug, info, warning or error, found loud"),
    ],
)
def test_a_wrong_value_is_blamed_on_its_option_and_never_on_the_file(tmp_path: Path, word: str, error: str):
    with pytest.raises(ConfigError) as caught:
        load_with(tmp_path, word)
    assert str(caught.value).startswith(error)


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
            'full-pcpu-only: unknown CPU Manager Policy option: "full-pcpu-only"; did you mean full-pcpus-only?',
        ),
        (
            {"--cpu-manager-policy-options": "full-pcpus-only=on"},
            'bad value for option "full-pcpus-only": strconv.ParseBool: parsing "on": invalid syntax',
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
