import pytest

from nri_plugin.simulator.machine.words import Token, read_clauses


def words(text: str) -> list[list[str]]:
    return [[token.text for token in clause.tokens] for clause in read_clauses(text, "x")]


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("a b, c", [["a", "b"], ["c"]]),
        ("a,b", [["a"], ["b"]]),
        ("ids 1,2-3, x", [["ids", "1,2-3"], ["x"]]),
        ("a 1 /\n 2 3", [["a", "1", "/", "2", "3"]]),
        ("a 1/2", [["a", "1", "/", "2"]]),
        ("a +# why\nb", [["a", "+", "b"]]),
        (" , ;\n,", []),
    ],
)
def test_clauses(text: str, clauses: list[list[str]]) -> None:
    assert words(text) == clauses


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Sockets:", "socket"),
        ("ids", "ids"),
        ("cpu-less", "cpu-less"),
        ("L3", "l3"),
        ("CPUs", "cpu"),
        ("caches", "cache"),
    ],
)
def test_case_colons_and_plurals_mean_nothing(text: str, word: str) -> None:
    assert Token(text, 1, 1).word == word


def test_a_token_knows_its_place() -> None:
    clause = list(read_clauses("a\n  bc d", "x"))[1]
    assert clause.tokens == [Token("bc", 2, 3), Token("d", 2, 6)]
