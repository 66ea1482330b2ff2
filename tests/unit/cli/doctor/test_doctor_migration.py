"""Where the kubelet pins, the next step is `nri-pin migrate`, with what it needs before and after."""

from nri_plugin import __version__
from nri_plugin.cli.doctor.evidence import FoundConfig
from nri_plugin.cli.doctor.findings import NextStep
from nri_plugin.cli.doctor.kubelet import steps
from nri_plugin.cli.doctor.settings import CONFIG_FILE, KubeletSettings, Setting
from tests.doctor_evidence import CONFIG, evidence, status

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
