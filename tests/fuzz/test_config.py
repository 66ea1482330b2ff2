"""Whatever stands in a configuration, the answer is a Config or a ConfigError, and nothing else."""

import contextlib

from hypothesis import example, given
from hypothesis import strategies as st

from nri_plugin.config.keys import KEYS
from nri_plugin.config.loading import Config, load_text
from nri_plugin.model.errors import ConfigError

ALLOWED = (ConfigError,)

words = st.sampled_from(
    [
        "static",
        "none",
        "None",
        "Static",
        "true",
        "no",
        "1:30",
        "1_0",
        "~",
        "0-3",
        "500m",
        "1Gi",
        "-1",
        "",
        "/x",
        "90",
        "5%",
    ]
)
names = st.sampled_from([*KEYS, "numaNode", "limits", "memory", "cpu", "memory.available", "full-pcpus-only"])
values = st.recursive(
    words,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(names, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}"
        )
    ),
    max_leaves=6,
)
configurations = st.lists(st.tuples(st.sampled_from(list(KEYS)), values), max_size=6).map(
    lambda pairs: "\n".join(f"{name}: {value}" for name, value in pairs)
)


def outcome(text: str) -> None:
    with contextlib.suppress(*ALLOWED):
        assert isinstance(load_text(text, "f"), Config)


@given(st.text(max_size=200))
@example("&a [*a]")
@example("a: !!python/object/apply:os.system [x]")
@example("\ufeffcpuManagerPolicy: none")
@example("? ? ? a")
@example("%YAML 9.9\n---\n")
def test_any_text(text: str) -> None:
    outcome(text)


@given(configurations)
def test_anything_that_looks_like_a_configuration(text: str) -> None:
    outcome(text)


@given(configurations)
def test_an_error_names_the_file_first(text: str) -> None:
    assert error_of(text).startswith("some.yaml:")


def error_of(text: str) -> str:
    try:
        return load_text(text, "some.yaml").source + ": no error"
    except ALLOWED as error:
        return str(error)
