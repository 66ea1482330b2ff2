"""What each release knows, read off the protocol's own file."""

import re
from pathlib import Path

import pytest

from nri_plugin.wire.nri import events
from nri_plugin.wire.nri._pb import nri_pb2 as pb

PROTO = (Path(__file__).parents[4] / "proto" / "nri.proto").read_text()


def constant(kind: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()


@pytest.mark.parametrize("kind", events.EVENTS, ids=lambda kind: kind.__name__)
def test_the_table_says_what_the_protocols_file_says(kind: type) -> None:
    row, name = events.EVENTS[kind], constant(kind)
    found = re.search(rf"^  {name} = (\d+);(?:  // since ([\d.]+))?$", PROTO, re.MULTILINE)
    if found is None:
        assert row.bit == 0
        return
    assert row.bit == 1 << (pb.Event.Value(name) - 1)
    assert row.since == (tuple(map(int, found[2].split(".")))[:2] if found[2] else events.OLDEST)
