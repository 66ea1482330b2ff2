from nri_plugin.cli.doctor.findings import Verdict, not_visible
from nri_plugin.cli.doctor.view import Hidden


def test_what_a_mount_would_show_names_the_mount() -> None:
    answer = not_visible(Hidden("/etc/x", "/host/etc/x"), "x is dark", "look elsewhere")
    assert (answer.verdict, answer.do) == (Verdict.NOT_VISIBLE, "mount /etc/x of the node at /host/etc/x")
    assert (answer.mount, answer.mount_at) == ("/etc/x", "/host/etc/x")


def test_what_no_mount_would_show_says_how_else_or_why_not() -> None:
    assert not_visible(Hidden(""), "x is dark", "look elsewhere").do == "look elsewhere"
    assert not_visible(Hidden("/etc/x", why="run as root"), "x is dark").do == "/etc/x: run as root"
