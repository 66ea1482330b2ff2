"""The words of `nri-pin extender`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_plugin.cli import extender
from nri_plugin.extender.cache import Accounting
from nri_plugin.extender.cluster_scores import DistanceBonus, Strategy


def options(monkeypatch, *words):
    given = []
    monkeypatch.setattr(extender, "_run", lambda options: given.append(extender.options_of(options)) or 0)
    result = CliRunner().invoke(extender.command, words)
    assert result.exit_code == 0, result.output
    return given[0]


def test_without_words_it_is_like_the_scheduler_plugin_but_for_sidecars(monkeypatch):
    made = options(monkeypatch)
    assert made.address == ("", 8888)
    assert made.scoring.strategy is Strategy.LEAST_NUMA_NODES
    assert made.scoring.bonus is DistanceBonus.ALWAYS
    assert (made.accounting.is_on, made.sidecars_stay, made.offers_bind) == (True, True, False)
    assert (made.body_bytes, made.takes_node_objects, made.healthz_address) == (None, False, None)


def test_every_word_arrives(monkeypatch):
    made = options(
        monkeypatch,
        *("--listen", "[::1]:9", "--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"),
        *("--strategy", "MostAllocated", "--weight", "cpu=2", "--weight", "a/b=3", "--scores", "raw"),
        *(
            "--distance-bonus",
            "prefer-closest-numa-nodes",
            "--no-accounting",
            "--charge-seconds",
            "5",
            "--guess-seconds",
            "0",
        ),
        *("--no-sidecars", "--bind", "--numa-annotation", "--max-body-mib", "2"),
        *("--node-objects", "--health-probe-bind-address", ":8889"),
    )
    assert made.address == ("::1", 9)
    assert (made.certificate, made.key, made.client_ca) == (Path("c"), Path("k"), Path("a"))
    assert made.scoring.weights == {"cpu": 2, "a/b": 3}
    assert made.scale.value == "raw"
    assert made.accounting == Accounting(is_on=False, charge_s=5, guess_s=0)
    assert (made.sidecars_stay, made.offers_bind, made.sends_to_numa_node) == (False, True, True)
    assert (made.longest_body, made.takes_node_objects) == (2 << 20, True)
    assert made.healthz_address == ("", 8889)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tls-cert", "c"], "go together"),
        (["--tls-client-ca", "c"], "needs --tls-cert"),
        (["--numa-annotation"], "needs --bind"),
        (["--bind"], "--bind needs --tls-cert, --tls-key and --tls-client-ca"),
        (["--bind", "--tls-cert", "c", "--tls-key", "k"], "--bind needs"),
        (["--weight", "cpu=0"], "cpu=2"),
        (["--listen", "here"], ":8888"),
        (["--listen", ":70000"], ":8888"),
    ],
)
def test_words_that_do_not_fit_are_refused_with_what_would(words, text):
    result = CliRunner().invoke(extender.command, words)
    assert result.exit_code == 2
    assert text in result.output
