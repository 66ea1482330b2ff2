"""Resource claims for CPUs as the host's CDI specifications tell them.

A DRA driver for CPUs writes a specification for each claim: a file of root whose device sets a variable with the CPUs. The
variable reaches the container's environment, where the author of the pod may write anything. So only what the file says
counts.

Source: kubernetes-sigs/dra-driver-cpu v0.2.0, pkg/driver/cdi.go; Container Device Interface 1.0, GenerateTransientSpecName.
"""

import re

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nri_plugin.core.claims import CDI_KIND, cdi_name
from nri_plugin.host.devices import FOLDERS, MOST_BYTES
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.bounds import CLAIMS_CPUS, VARIABLES
from nri_plugin.wire.nri.messages import Container

_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,62}\Z")
_NAME = re.compile(rf"{re.escape(CDI_KIND)}=claim-(.*)\Z", re.DOTALL)
_FILE = CDI_KIND.replace("/", "-") + "_claim-{}.json"


class _Edits(Struct):
    env: list[str] = []


class _Device(Struct, rename="camel"):
    name: str
    container_edits: _Edits = msgspec.field(default_factory=_Edits)


class _Spec(Struct):
    kind: str
    devices: list[_Device] = []


class CPUClaims:
    """Checks what containers say about claims.

    Args:
        files: the root with the host's CDI specifications.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._files = files

    def checked(self, container: Container) -> Container:
        """The container with the variables of its claims as the host tells them, and no others of that name.

        A claim is known by a variable, or by the CDI name where the runtime reports it. Never raises: a file that cannot
        be read makes no claim.
        """
        if not (container.env or container.cdi_devices):
            return container
        said = {line.partition("=")[0].removeprefix(CLAIMS_CPUS) for line in container.env if _is_claim(line)}
        named = {found[1] for name in container.cdi_devices if (found := _NAME.match(name))}
        if not said and not named:
            return container
        # CDI names first: those of variables may be a few dozen that the pod's author made up.
        uids = [uid for uid in (*sorted(named), *sorted(said - named)) if _UID.match(uid)]
        lines = map(self._line, uids[:VARIABLES])
        others = [line for line in container.env if not _is_claim(line)]
        return replace(container, env=(*others, *filter(None, lines)))

    def _line(self, uid: str) -> str:
        """The variable that the specification of the claim sets; empty without one."""
        wanted = f"{CLAIMS_CPUS}{uid}="
        for folder in FOLDERS:
            try:
                with open(self._files.path(f"{folder}/{_FILE.format(uid)}"), "rb") as file:
                    spec = msgspec.json.decode(file.read(MOST_BYTES), type=_Spec)
            except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
                continue
            for device in spec.devices:
                if f"{spec.kind}={device.name}" == cdi_name(uid):
                    return next((line for line in device.container_edits.env if line.startswith(wanted)), "")
        return ""


def _is_claim(line: str) -> bool:
    return line.startswith(CLAIMS_CPUS)
