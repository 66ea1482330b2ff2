"""The example that introduces the package is a plugin that works."""

import re
import textwrap

import nri_plugin.wire.nri
from nri_plugin.wire.nri.events import CreateContainer, EventMask
from tests.lab.runtime.profile import CONTAINERD_2_1
from tests.protocol.peer import CONTAINER, POD, Link


def test_the_example_answers_what_it_says():
    text = nri_plugin.wire.nri.__doc__
    code = re.search(r"^    from .*?(?=^    session = )", text, re.DOTALL | re.MULTILINE)[0]
    plugin = {}
    exec(textwrap.dedent(code), plugin)
    session = plugin["PluginSession"]("hints", "20", EventMask.CREATE_CONTAINER)
    link = Link(CONTAINERD_2_1, session).establish()
    request = link.ask(CreateContainer(POD, CONTAINER))
    assert session.respond(request.call, plugin["answer"](request.event), 0.0) == ""
    (answered,) = link.to_runtime()
    assert answered.response.env == {"HINTS": "/etc/hints"}
