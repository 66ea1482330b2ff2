"""The scheduler's forms, name by name."""

import json

import pytest

from nri_plugin.extender import forms
from nri_plugin.model.errors import KubeObjectError

NODE = '{"metadata":{"name":"n1","labels":{}},"spec":{"x": 1.50},"status":{"allocatable":{"cpu":"4"}}}'


def body(**fields):
    return json.dumps(fields).encode()


def test_names_come_and_go_as_names():
    args = forms.read_args(body(Pod={"spec": {}}, Nodes=None, NodeNames=["a", "b"]))
    assert (args.pod, list(args.names), args.nodes) == ({"spec": {}}, ["a", "b"], None)
    assert json.loads(forms.filter_result(args, [False, True], {"a": "why"})) == {
        "Nodes": None,
        "NodeNames": ["b"],
        "FailedNodes": {"a": "why"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_node_objects_come_back_byte_for_byte():
    args = forms.read_args(
        f'{{"Pod":{{}},"Nodes":{{"metadata":{{}},"items":[{NODE}]}},"NodeNames":null}}'.encode()
    )
    assert list(args.names) == ["n1"]
    answer = forms.filter_result(args, [True], {})
    assert NODE.encode() in answer
    assert json.loads(answer)["NodeNames"] is None


@pytest.mark.parametrize("names", [("pod", "nodes", "nodenames"), ("POD", "Nodes", "nodeNames")])
def test_names_of_fields_are_read_in_any_case(names):
    pod, nodes, node_names = names
    args = forms.read_args(body(**{pod: {}, nodes: None, node_names: ["a"]}, Other=1))
    assert list(args.names) == ["a"]


def test_no_node_at_all_is_answered_with_none():
    args = forms.read_args(body(Pod={}, Nodes=None, NodeNames=None))
    assert list(args.names) == []
    assert forms.read_args(body(Pod={}, NodeNames=[])).nodes is None


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"Pod":1,"NodeNames":[]}', b'{"Pod":{},"NodeNames":[1]}', b"\xff", b'{"Pod":{}'],
)
def test_what_is_no_question_is_refused(data):
    with pytest.raises(KubeObjectError):
        forms.read_args(data)


def test_scores_are_a_bare_list():
    assert json.loads(forms.priorities(["a"], [7])) == [{"Host": "a", "Score": 7}]


def test_a_binding_is_four_texts():
    args = forms.read_binding(body(PodName="p", PodNamespace="ns", PodUID="u", Node="n"))
    assert args == forms.BindingArgs("p", "ns", "u", "n")
    with pytest.raises(KubeObjectError, match="podname"):
        forms.read_binding(body(Node="n"))
    assert json.loads(forms.binding_result("why")) == {"Error": "why"}


def test_an_error_lets_no_node_pass():
    answer = json.loads(forms.filter_error("why"))
    assert (answer["Error"], answer["NodeNames"], answer["Nodes"]) == ("why", None, None)
