import pytest

from nri_plugin.cli.doctor_findings import Finding, Verdict
from nri_plugin.cli.doctor_kubelet import KubeletEvidence, judge
from nri_plugin.cpuset import CPUSet
from nri_plugin.host.node_evidence import Hidden
from nri_plugin.host.node_evidence_kubelet import STATE_FILES, KubeletSettings, Setting

FILE = "/var/lib/kubelet/config.yaml"
OUT_OF_SIGHT = Hidden(FILE, "/host/var/lib/kubelet/config.yaml")


def told(**values: str) -> KubeletSettings:
    return KubeletSettings((FILE,), {key: Setting(value, f"{FILE}:7") for key, value in values.items()})


def found(settings: KubeletSettings | Hidden | None, **seen: object) -> dict[str, Finding]:
    return {finding.check: finding for finding in judge(KubeletEvidence(settings, **seen))}  # type: ignore[arg-type]


def test_a_machine_without_a_kubelet_has_no_rival_in_it() -> None:
    assert [(finding.check, finding.verdict) for finding in judge(KubeletEvidence(None))] == [
        ("kubelet", Verdict.OK)
    ]


@pytest.mark.parametrize(
    ("check", "key", "value", "verdict"),
    [
        ("cpu-manager", "cpuManagerPolicy", "none", Verdict.OK),
        ("cpu-manager", "cpuManagerPolicy", "static", Verdict.TO_DO),
        ("memory-manager", "memoryManagerPolicy", "None", Verdict.OK),
        ("memory-manager", "memoryManagerPolicy", "Static", Verdict.TO_DO),
        ("topology-manager", "topologyManagerPolicy", "none", Verdict.OK),
        ("topology-manager", "topologyManagerPolicy", "restricted", Verdict.TO_DO),
    ],
)
def test_the_managers_of_the_kubelet_must_be_off(check: str, key: str, value: str, verdict: Verdict) -> None:
    answer = found(told(**{key: value}))[check]
    assert answer.verdict is verdict
    assert f"{FILE}:7" in answer.says
    assert found(told())[check].verdict is Verdict.OK


def test_they_stay_as_they_are_while_the_agent_only_observes() -> None:
    answer = found(told(cpuManagerPolicy="static"), is_only_observed=True)["cpu-manager"]
    assert (answer.verdict, answer.command) == (Verdict.OK, "")
    assert "stays so while the agent only observes" in answer.says
    by_file = found(OUT_OF_SIGHT, states={STATE_FILES[0]: "static"}, is_only_observed=True)
    assert by_file["cpu-manager"].verdict is Verdict.OK


def test_switching_the_cpu_manager_off_takes_its_promises_over() -> None:
    assert found(told(cpuManagerPolicy="static"))["cpu-manager"].command == (
        "systemctl stop kubelet && nri-pin state import /var/lib/kubelet && "
        f"sed -i '7s/:.*/: none/' {FILE} && rm -f {STATE_FILES[0]} && systemctl start kubelet"
    )


def test_an_option_on_the_command_line_has_no_line_to_edit() -> None:
    settings = KubeletSettings(
        (), {"cpuManagerPolicy": Setting("static", "--cpu-manager-policy on its command line")}
    )
    answer = found(settings)["cpu-manager"]
    assert (answer.verdict, answer.command) == (Verdict.TO_DO, "")


def test_a_state_file_tells_where_the_configuration_is_out_of_sight() -> None:
    assert found(OUT_OF_SIGHT)["cpu-manager"].verdict is Verdict.NOT_VISIBLE
    assert found(OUT_OF_SIGHT, states={STATE_FILES[0]: ""})["cpu-manager"].verdict is Verdict.NOT_VISIBLE
    assert found(OUT_OF_SIGHT, states={STATE_FILES[0]: "none"})["cpu-manager"].verdict is Verdict.OK
    assert (
        found(OUT_OF_SIGHT, states={STATE_FILES[0]: "none"})["memory-manager"].verdict is Verdict.NOT_VISIBLE
    )
    assert found(OUT_OF_SIGHT, states={STATE_FILES[0]: "static"})["cpu-manager"].verdict is Verdict.TO_DO


def test_a_state_file_that_is_left_over_keeps_the_kubelet_from_starting() -> None:
    answer = found(told(cpuManagerPolicy="none"), states={STATE_FILES[0]: "static"})["cpu-manager-state"]
    assert answer.command == f"nri-pin state import /var/lib/kubelet && rm {STATE_FILES[0]}"
    assert "cpu-manager-state" not in found(told(), states={STATE_FILES[0]: "none"})


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        (None, "0-1", Verdict.OK),
        ("0-1", "0-1", Verdict.OK),
        ("0,1", "0-1", Verdict.OK),
        ("0-3", "0-1", Verdict.TO_DO),
        ("0-3", None, Verdict.OK),
        ("a-b", "0-1", Verdict.TO_DO),
    ],
)
def test_both_keep_the_same_cpus_for_the_system(
    theirs: str | None, ours: str | None, verdict: Verdict
) -> None:
    settings = told() if theirs is None else told(reservedSystemCPUs=theirs)
    reserved = None if ours is None else CPUSet.parse(ours)
    assert found(settings, reserved=reserved)["reserved-cpus"].verdict is verdict


def test_the_pod_resources_socket_is_tried() -> None:
    assert found(told())["pod-resources"].verdict is Verdict.OK
    assert found(told(), pod_resources="nobody listens on it")["pod-resources"].verdict is Verdict.TO_DO
    assert found(told(), pod_resources=OUT_OF_SIGHT)["pod-resources"].verdict is Verdict.NOT_VISIBLE


def test_a_broken_file_is_named() -> None:
    assert FILE in found(KubeletSettings(broken=f"{FILE}: not YAML"))["kubelet"].says
