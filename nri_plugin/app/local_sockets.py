"""What the exporter serves on the node: PodResources for monitoring, and devices for the agent.

Both lie in the agent's state directory and stand on the kubelet's own socket, which only the exporter mounts.
"""

import logging
import os

from nri_plugin.app.facts_socket import DeviceSource, FactsSocket
from nri_plugin.app.logs import say
from nri_plugin.errors import HostError, KubeletError
from nri_plugin.kube.pod_resources import devices_of
from nri_plugin.kube.pod_resources_server import KubeletClient, PodResourcesServer, View
from nri_plugin.kube.publication import Devices

POD_RESOURCES_SOCKET = "pod-resources.sock"
FACTS_SOCKET = "exporter.sock"


class LocalSockets:
    """The sockets, from `open` to `close`.

    Args:
        kubelet_socket: of the kubelet's PodResources API.
        agent_socket: ours lie beside it.
        log: for troubles when they begin and end.
    """

    def __init__(self, kubelet_socket: str, agent_socket: str, log: logging.Logger) -> None:
        self._kubelet, self._log = KubeletClient(kubelet_socket), log
        self._folder = os.path.dirname(os.path.abspath(agent_socket))
        self._servers: list[PodResourcesServer | FactsSocket] = []
        self._known = Devices()
        self._trouble = ""

    def open(self, view: View) -> None:
        """Begin to answer; `view` is what the agent has promised. The object is published without as well."""
        facts, resources = (os.path.join(self._folder, name) for name in (FACTS_SOCKET, POD_RESOURCES_SOCKET))
        try:
            self._servers.append(FactsSocket(facts, DeviceSource(self._kubelet), self._log))
            self._servers.append(PodResourcesServer(resources, self._kubelet, view))
        except HostError as error:
            say(self._log, logging.WARNING, "a local socket is missing", err=error)
            return
        say(self._log, logging.INFO, "answering", devices=facts, pod_resources=resources)

    def devices(self) -> Devices:
        """What the kubelet says of devices; while it says nothing, what it said last."""
        try:
            self._known = devices_of(self._kubelet.allocatable(), self._kubelet.list())
            trouble = ""
        except KubeletError as error:
            trouble = str(error)
        if trouble != self._trouble and trouble:
            say(self._log, logging.WARNING, "devices are not known anew", err=trouble)
        self._trouble = trouble
        return self._known

    def close(self) -> None:
        """Stop answering."""
        for server in self._servers:
            server.close()
        self._kubelet.close()
