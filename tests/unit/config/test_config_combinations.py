"""Every set of the CPU Manager's options with every topology policy: taken or refused as the kubelet does."""

from itertools import chain, combinations

import pytest

from nri_plugin.config.loading import load_text
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.topology import Topology
from tests.topology_rows import topology_of_rows

FULL, NUMA, CORES = "full-pcpus-only", "distribute-cpus-across-numa", "distribute-cpus-across-cores"
SOCKET, STRICT, CACHE = "align-by-socket", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"
OPTIONS = (FULL, NUMA, CORES, SOCKET, STRICT, CACHE)
EVEN = topology_of_rows([(cpu, cpu, cpu // 4, cpu // 2, cpu // 2) for cpu in range(8)])
MORE_SOCKETS = topology_of_rows([(cpu, cpu, cpu // 4, 0, cpu // 4) for cpu in range(8)])


def expected(on: set[str], policy: str, topology: Topology, *, alpha: bool) -> str:
    """The kubelet's reason, by its order of checks; empty where it starts."""
    if on & {CORES, SOCKET} and not alpha:
        return "CPU Manager Policy Alpha-level Options not enabled, but option"
    for one, other in ((FULL, CORES), (NUMA, CORES), (CACHE, CORES), (CACHE, NUMA)):
        if {one, other} <= on:
            return f"static policy options {one} and {other} can not be used at the same time"
    if SOCKET in on and policy == "single-numa-node":
        return "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
    if SOCKET in on and topology is MORE_SOCKETS:
        return "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
    return ""


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("alpha", [True, False], ids=["alpha gate on", "alpha gate off"])
@pytest.mark.parametrize("topology", [EVEN, MORE_SOCKETS], ids=["even", "more sockets than nodes"])
def test_every_set_of_options_is_taken_or_refused_with_the_kubelets_reason(
    policy: str, topology: Topology, *, alpha: bool
) -> None:
    for on in chain.from_iterable(combinations(OPTIONS, size) for size in range(len(OPTIONS) + 1)):
        options = ", ".join(f'{name}: "true"' for name in on)
        text = (
            f'reservedSystemCPUs: "0"\ntopologyManagerPolicy: {policy}\ncpuManagerPolicyOptions: {{{options}}}\n'
            f"featureGates: {{CPUManagerPolicyAlphaOptions: {str(alpha).lower()}}}\n"
        )
        try:
            load_text(text, "f").node(topology)
            refused = ""
        except ConfigError as error:
            refused = str(error)
        reason = expected(set(on), policy, topology, alpha=alpha)
        assert bool(refused) == bool(reason), text
        assert reason in refused, text
