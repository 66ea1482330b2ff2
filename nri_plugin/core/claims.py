"""CPUs that another program gave to a container: resource claims of dynamic resource allocation (DRA).

A DRA driver for CPUs takes the CPUs of a claim before the container is created, names them in a variable that its CDI
device sets, and writes the cpuset itself. Here such a container has an allocation that names the claim. No other container
gets these CPUs, they are in no shared pool, and the agent sets nothing else for the container.

Invariant: no CPU has two owners. A container is refused with both names if its claim has CPUs of another container, or if
it also asks this agent for CPUs.

The variable is input of the pod's author, too. The agent passes it on only where the host's CDI specification says the same
(`nri_plugin.host.cpu_claims`).

Source: kubernetes-sigs/dra-driver-cpu v0.2.0, pkg/driver/cdi.go (cdiEnvVarPrefix, cdiVendor, cdiClass) and dra_hooks.go
    (getCDIDeviceName).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nri_plugin.model.bounds import CLAIMS_CPUS
from nri_plugin.model.sets import NO_CPUS, CPUSet

CDI_KIND = "dra.k8s.io/cpu"
OWNER = "nri-pin"


@dataclass(frozen=True, slots=True)
class CPUClaim:
    """The CPUs that a container has by its resource claims.

    Attributes:
        names: the CDI names of the claims, with commas between them; empty without a claim.
        cpus: the CPUs of all of them.
    """

    names: str = ""
    cpus: CPUSet = NO_CPUS


NO_CLAIM = CPUClaim()


def claim_in(variables: Iterable[str]) -> CPUClaim:
    """The claims that these lines `NAME=VALUE` of an environment tell; a line that cannot be read tells none."""
    names, cpus = [], NO_CPUS
    for line in variables:
        name, _, value = line.partition("=")
        if not name.startswith(CLAIMS_CPUS):
            continue
        try:
            found = CPUSet.parse(value)
        except ValueError:
            continue
        if found:
            names.append(cdi_name(name.removeprefix(CLAIMS_CPUS)))
            cpus |= found
    return CPUClaim(",".join(names), cpus) if names else NO_CLAIM


def cdi_name(claim_uid: str) -> str:
    """The CDI name of the device that stands for a claim."""
    return f"{CDI_KIND}=claim-{claim_uid}"
