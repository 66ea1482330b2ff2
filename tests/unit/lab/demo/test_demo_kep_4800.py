"""The two examples of KEP-4800 and odd counts, through agent, protocol and cgroups: what an operator would see."""

from pathlib import Path

import pytest

from tests.unit.lab.demo.test_demo import run_demo

CORES_32 = "pack:1 numa:1 l3:4 core:8 pu:1"
CORES_16 = "pack:1 numa:1 l3:2 core:8 pu:1"
SMT = "pack:1 numa:1 l3:2 core:4 pu:2"
KUBELET = 'cpuManagerPolicyOptions: {prefer-align-cpus-by-uncorecache: "true"}'
KEP = f"{KUBELET}, uncoreCacheRule: kep-4800"
OFF = "poolFloor: true"


def scenario(machine: str, config: str, asked: tuple[int, ...], expected: tuple[str, ...]) -> str:
    """One pod after the other, each expected on its CPUs, or refused where words are expected."""
    steps = []
    for number, (cpus, given) in enumerate(zip(asked, expected, strict=True)):
        steps.append(f"- run: a/p{number}\n  containers: {{c: {{cpu: {cpus}, memory: 1Gi}}}}")
        key = "cpus" if given[0].isdigit() else "refused"
        steps.append(f'- expect: a/p{number}/c\n  {key}: "{given}"')
    return f'machine: |\n  {machine}\nconfig: {{reservedSystemCPUs: "0-1", {config}}}\nsteps:\n' + "\n".join(
        steps
    )


@pytest.mark.parametrize(
    ("machine", "config", "asked", "expected"),
    [
        pytest.param(CORES_32, KEP, (10, 8, 6), ("8-17", "24-31", "2-7"), id="32 cores, kep-4800"),
        pytest.param(CORES_32, KUBELET, (10, 8, 6), ("2-3,8-15", "16-23", "24-29"), id="32 cores, kubelet"),
        pytest.param(CORES_32, OFF, (10, 8, 6), ("2-11", "12-19", "20-25"), id="32 cores, off"),
        pytest.param(CORES_16, KEP, (4, 4, 4), ("2-5", "8-11", "12-15"), id="16 cores, kep-4800"),
        pytest.param(CORES_16, KUBELET, (4, 4, 4), ("2-5", "8-11", "12-15"), id="16 cores, kubelet"),
        pytest.param(CORES_16, OFF, (4, 4, 4), ("2-5", "6-9", "10-13"), id="16 cores, off"),
        pytest.param(SMT, "smtOddCounts: round-up", (3, 1), ("2-5", "6-7"), id="odd counts rounded up"),
        pytest.param(
            SMT, "smtOddCounts: reject", (3, 2), ("SMTAlignmentError", "2-3"), id="odd counts rejected"
        ),
    ],
)
def test_containers_run_where_the_example_has_them(
    machine: str, config: str, asked: tuple[int, ...], expected: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text(scenario(machine, config, asked, expected))
    done = run_demo("--scenario", str(tmp_path / "x.yaml"), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
