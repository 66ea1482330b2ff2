"""The binding that is sent."""

from nri_plugin.extender.forms import BindingArgs
from nri_plugin.extender.process import api_binder


class Client:
    sent = None

    def send(self, *args, **kwargs):
        self.sent = args, kwargs


def test_a_binding_names_pod_uid_node_and_annotations():
    client = Client()
    api_binder(client)(BindingArgs("p", "ns", "u", "n"), {"a": "b"})
    assert client.sent == (
        ("POST", "/api/v1/namespaces/ns/pods/p/binding"),
        {
            "body": {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"a": "b"}},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
            }
        },
    )
