"""The example that introduces the package is a plugin that works."""

import re
import textwrap

import nri_plugin.wire.nri
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.events import CreateContainer
from tests.lab.runtime.profile import CONTAINERD_2_1
from tests.protocol.peer import CONTAINER, POD, Link


def example():
    """Returns what the example defines, up to where it needs a socket and a clock."""
    code = re.search(
        r"^    from .*?(?=^    session = )", nri_plugin.wire.nri.__doc__, re.DOTALL | re.MULTILINE
    )[0]
    defined = {}
    exec(textwrap.dedent(code), defined)
    return defined


def test_the_example_answers_what_it_says():
    plugin = example()
    session = plugin["PluginSession"]("hints", "20", plugin["EventMask"].CREATE_CONTAINER)
    link = Link(CONTAINERD_2_1, session).establish()
    request = link.ask(CreateContainer(POD, CONTAINER))
    assert session.respond(request.call, plugin["answer"](request.event), 0.0) is None
    (answered,) = link.to_runtime()
    assert answered.response.whole() == plugin["WANTED"]
    assert answered.owners["c1"].owner(pb.Mounts, "/etc/hints") == "20-hints"
