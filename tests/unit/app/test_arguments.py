import pytest

from nri_plugin.app.arguments import HELP, OPTIONS, Arguments, parse
from nri_plugin.app.config import DEFAULT_PATH, load_text
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
