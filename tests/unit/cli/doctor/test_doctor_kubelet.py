import pytest

from nri_plugin import __version__
from nri_plugin.cli.doctor.evidence import FoundConfig
from nri_plugin.cli.doctor.findings import Finding, NextStep, Verdict
from nri_plugin.cli.doctor.kubelet import culprit, must_hand_over, steps
from nri_plugin.cli.doctor.settings import CONFIG_FILE, STATE_FILES, KubeletSettings, Setting
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.model.sets import CPUSet
from tests.builders import machine
from tests.doctor_evidence import CONFIG, evidence, findings, status

FILE = "/var/lib/kubelet/config.yaml"
MIGRATE = "nri-pin migrate to-plugin --yes"
OBSERVING = status(observing=True)
OUT_OF_SIGHT = Hidden(FILE, "/host/var/lib/kubelet/config.yaml")


def told(**values: str) -> KubeletSettings:
    by_key = {key: Setting(value, FILE, 7) for key, value in values.items()}
    options = tuple(one for key, one in by_key.items() if key == "cpuManagerPolicyOptions")
    return KubeletSettings((FILE,), by_key, cpu_options=options, line_files=(FILE,))


def found(settings: KubeletSettings | Hidden | None, **seen: object) -> dict[str, Finding]:
    return findings("kubelet", **{"kubelet": settings, "reserved": None, **seen})


def test_a_machine_without_a_kubelet_has_no_rival_in_it() -> None:
    assert {check: finding.verdict for check, finding in found(None).items()} == {"kubelet": Verdict.OK}


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
    answer = found(told(cpuManagerPolicy="static"), answer=OBSERVING)["cpu-manager"]
    assert (answer.verdict, answer.command) == (Verdict.OK, "")
    assert "stays so while the agent only observes" in answer.says
    by_file = found(OUT_OF_SIGHT, state_policies={STATE_FILES[0]: "static"}, answer=OBSERVING)
    assert by_file["cpu-manager"].verdict is Verdict.OK


def test_the_first_manager_that_is_on_has_the_steps_for_all() -> None:
    answers = found(told(cpuManagerPolicy="static", memoryManagerPolicy="Static"))
    assert answers["cpu-manager"].command == ""
    assert answers["cpu-manager"].steps[-1].command == MIGRATE
    assert answers["memory-manager"].steps == ()
    assert answers["memory-manager"].do == "the steps above do it: set memoryManagerPolicy to None"


def test_options_that_a_kubelet_under_none_refuses_are_named() -> None:
    answer = found(told(cpuManagerPolicy="none", cpuManagerPolicyOptions="full-pcpus-only=true"))[
        "cpu-manager"
    ]
    assert answer.verdict is Verdict.TO_DO
    assert "the kubelet does not start with both" in answer.says
    assert answer.steps[-1].command == MIGRATE


def test_while_the_kubelet_has_to_hand_over_nothing_says_to_start_it() -> None:
    answers = found(told(cpuManagerPolicy="static"), pod_resources="no process listens on it")
    assert answers["pod-resources"].command == ""
    assert must_hand_over(evidence(kubelet=told(cpuManagerPolicy="static")))
    assert not must_hand_over(evidence(kubelet=told(cpuManagerPolicy="static"), answer=OBSERVING))
    assert not must_hand_over(evidence(kubelet=told()))


def test_who_pins_is_known_by_the_configuration_or_the_state_file() -> None:
    pins = evidence(kubelet=told(cpuManagerPolicy="static"))
    assert culprit(pins) == f"cpuManagerPolicy static, {FILE}:7"
    by_file = evidence(kubelet=OUT_OF_SIGHT, state_policies={STATE_FILES[0]: "static"})
    assert culprit(by_file) == f"cpuManagerPolicy static, {STATE_FILES[0]}"
    assert culprit(evidence(kubelet=told())) == ""


def test_a_state_file_tells_where_the_configuration_is_out_of_sight() -> None:
    assert found(OUT_OF_SIGHT)["cpu-manager"].verdict is Verdict.NOT_VISIBLE
    assert (
        found(OUT_OF_SIGHT, state_policies={STATE_FILES[0]: ""})["cpu-manager"].verdict is Verdict.NOT_VISIBLE
    )
    assert found(OUT_OF_SIGHT, state_policies={STATE_FILES[0]: "none"})["cpu-manager"].verdict is Verdict.OK
    assert (
        found(OUT_OF_SIGHT, state_policies={STATE_FILES[0]: "none"})["memory-manager"].verdict
        is Verdict.NOT_VISIBLE
    )
    assert (
        found(OUT_OF_SIGHT, state_policies={STATE_FILES[0]: "static"})["cpu-manager"].verdict is Verdict.TO_DO
    )


def test_a_state_file_that_is_left_over_keeps_the_kubelet_from_starting() -> None:
    answer = found(told(cpuManagerPolicy="none"), state_policies={STATE_FILES[0]: "static"})[
        "cpu-manager-state"
    ]
    assert answer.steps[-1].command == MIGRATE
    assert "cpu-manager-state" not in found(told(), state_policies={STATE_FILES[0]: "none"})


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        (None, "", Verdict.OK),
        (None, "0-1", Verdict.TO_DO),
        (None, None, Verdict.OK),
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


SMT = machine(nodes=2, cores=4, threads=2)


@pytest.mark.parametrize(
    ("amounts", "ours", "verdict"),
    [
        ({"kubeReserved": "cpu=2"}, "0-1", Verdict.OK),
        ({"kubeReserved": "cpu=500m,memory=1Gi", "systemReserved": "cpu=1200m"}, "0-1", Verdict.OK),
        ({"kubeReserved": "cpu=1"}, "0-1", Verdict.TO_DO),
        ({"kubeReserved": "cpu=3"}, "0-1", Verdict.TO_DO),
        ({"kubeReserved": "memory=1Gi"}, "0-1", Verdict.TO_DO),
        ({"kubeReserved": "cpu=a"}, "0-1", Verdict.TO_DO),
        ({"kubeReserved": "cpu=1", "reservedSystemCPUs": "0-1"}, "0-1", Verdict.OK),
    ],
)
def test_amounts_that_the_kubelet_keeps_are_counted(
    amounts: dict[str, str], ours: str, verdict: Verdict
) -> None:
    answer = found(told(**amounts), reserved=CPUSet.parse(ours), topology=SMT)["reserved-cpus"]
    assert answer.verdict is verdict, answer.says


def test_where_the_kubelet_reserves_nothing_the_line_to_write_is_told() -> None:
    answer = found(told(), reserved=CPUSet.parse("0"), topology=SMT)["reserved-cpus"]
    assert "the agent keeps CPUs 0 for the system, the kubelet keeps none" in answer.says
    assert [step.command for step in answer.steps] == [
        f"""sed -i '$a reservedSystemCPUs: "0-1"' {FILE}""",
        "systemctl restart kubelet",
    ]
    by_hand = KubeletSettings((FILE,), {})
    answer = found(by_hand, reserved=CPUSet.parse("0"), topology=SMT)["reserved-cpus"]
    assert [step.command for step in answer.steps] == ["", "systemctl restart kubelet"]


@pytest.mark.parametrize("key", ["kubeReservedCgroup", "systemReservedCgroup"])
def test_beside_a_cgroup_for_the_system_no_cpus_are_to_be_written_by_number(key: str) -> None:
    settings = told(kubeReserved="cpu=1", **{key: "/x.slice"})
    answer = found(settings, reserved=CPUSet.parse("0-1"), topology=machine())["reserved-cpus"]
    assert (answer.verdict, answer.command, answer.steps) == (Verdict.TO_DO, "", ())
    assert "add up to 2 CPUs: the kubelet refuses reservedSystemCPUs beside" in answer.do


def test_a_kubelet_that_hands_over_is_restarted_once() -> None:
    answers = found(told(cpuManagerPolicy="static"), reserved=CPUSet.parse("0-1"), topology=SMT)
    assert answers["reserved-cpus"].steps == ()
    assert "the migration above writes the agent's into the kubelet's" in answers["reserved-cpus"].do


def test_the_pod_resources_socket_is_tried() -> None:
    assert found(told())["pod-resources"].verdict is Verdict.OK
    assert found(told(), pod_resources="no process listens on it")["pod-resources"].verdict is Verdict.TO_DO
    assert found(told(), pod_resources=OUT_OF_SIGHT)["pod-resources"].verdict is Verdict.NOT_VISIBLE


def test_a_broken_file_is_named() -> None:
    assert FILE in found(KubeletSettings(broken=f"{FILE}: not YAML"))["kubelet"].says


SETTINGS = KubeletSettings((CONFIG_FILE,), {"cpuManagerPolicy": Setting("static", CONFIG_FILE, 4)})

UNCONFIGURED = FoundConfig(CONFIG, None, "no configuration", ("reservedSystemCPUs: 0",))


def plan(**more: object) -> list[str]:
    return [step.command for step in steps(evidence(**more), SETTINGS)]


def test_on_a_host_with_the_unit_the_plan_is_read_and_carried_out() -> None:
    assert plan(has_unit=True) == ["nri-pin migrate to-plugin", "nri-pin migrate to-plugin --yes"]


def test_the_unit_is_installed_first() -> None:
    assert plan()[0] == "nri-pin install --systemd"
    assert plan(answer=status()) == plan(has_unit=True)
    assert plan(plugins=("90-nri-pin",)) == plan(has_unit=True)


def test_the_first_configuration_is_the_kubelets_own() -> None:
    assert plan(config=UNCONFIGURED)[0] == f"install -D -m 0644 {CONFIG_FILE} {CONFIG}"
    flag = Setting("static", flag="--cpu-manager-policy")
    settings = KubeletSettings((), {"cpuManagerPolicy": flag})
    first = steps(evidence(config=UNCONFIGURED), settings)[0]
    assert first == NextStep(
        f"write {CONFIG} with the options that the kubelet has on its command line (--cpu-manager-policy)"
    )


def test_a_kubelet_that_starts_the_agent_is_cordoned_meanwhile() -> None:
    debug = f"kubectl debug node/NODE -it --profile=sysadmin --image=REGISTRY/nri-pin:{__version__} -- "
    assert plan(in_pod=True) == [
        f"{debug}nri-pin migrate to-plugin",
        "kubectl cordon NODE",
        f"{debug}nri-pin migrate to-plugin --yes",
        "kubectl label node NODE nri-pin/enabled=true",
        "kubectl -n nri-pin wait --for condition=Ready pod --field-selector spec.nodeName=NODE --timeout 120s",
        "kubectl uncordon NODE",
    ]
