"""Where the kubelet pins, the next step is `nri-pin migrate`, with what it needs before and after."""

from nri_plugin import __version__
from nri_plugin.cli.doctor.findings import NextStep
from nri_plugin.cli.doctor.kubelet import KubeletEvidence, steps
from nri_plugin.cli.doctor.kubelet_files import CONFIG_FILE, KubeletSettings, Setting

SETTINGS = KubeletSettings((CONFIG_FILE,), {"cpuManagerPolicy": Setting("static", CONFIG_FILE, 4, 4)})


def plan(**more: object) -> list[str]:
    settings = more.pop("settings", SETTINGS)
    assert isinstance(settings, KubeletSettings)
    seen = KubeletEvidence(settings, config_path="/etc/nri-pin/c.yaml", **more)  # type: ignore[arg-type]
    return [step.command for step in steps(seen, settings)]


def test_on_a_host_with_the_unit_the_plan_is_read_and_carried_out() -> None:
    assert plan(has_unit=True) == ["nri-pin migrate to-plugin", "nri-pin migrate to-plugin --yes"]


def test_the_unit_is_installed_first() -> None:
    assert plan()[0] == "nri-pin install --systemd"
    assert plan(agent_runs=True) == plan(has_unit=True)
    assert plan(restart_runtime="systemctl restart containerd") == plan(has_unit=True)


def test_the_first_configuration_is_the_kubelets_own() -> None:
    assert plan(has_configuration=False)[0] == f"install -D -m 0644 {CONFIG_FILE} /etc/nri-pin/c.yaml"
    flag = Setting("static", flag="--cpu-manager-policy")
    settings = KubeletSettings((), {"cpuManagerPolicy": flag})
    seen = KubeletEvidence(settings, config_path="/etc/c.yaml", has_configuration=False)
    first = steps(seen, settings)[0]
    assert first == NextStep(
        "write /etc/c.yaml with the options that the kubelet has on its command line (--cpu-manager-policy)"
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
