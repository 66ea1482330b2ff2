"""A control plane on this machine: its files, ports, programs, and how it is asked.

Invariant: everything that runs or is written is in one folder, and `down` leaves nothing of it but logs. No program
listens anywhere but on the loopback device, where guests of QEMU reach the API server, too.
"""

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.lab.progress import step
from tests.e2e.lab.shell import LabError
from tests.e2e.lab.writing import write_whole

from .audit import AUDIT_POLICY
from .authority import ISSUER, SERVER_NAMES, Authority
from .processes import Processes

Object = dict[str, Any]

PATIENCE_S = 120.0
"""Only ever waited for in vain."""

_TICK_S = 0.1


class RefusedError(Exception):
    """The API server answered with a status from 400 on."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


class ControlPlane:
    """One control plane.

    Args:
        folder: for all its files; exists while it is up.
        programs: the folder of its programs.
        is_lasting: False: it ends with this process.
    """

    def __init__(self, folder: Path, programs: Path, *, is_lasting: bool = False) -> None:
        self.folder, self.programs = folder, programs
        self.authority = Authority(folder / "keys")
        self._about: dict[str, int] = {}
        if self._record.exists():
            self._about = json.loads(self._record.read_text())
        self.processes = Processes(folder, is_lasting=is_lasting)

    @property
    def _record(self) -> Path:
        return self.folder / "ports.json"

    @property
    def is_up(self) -> bool:
        """Whether it was brought up and not taken down."""
        return bool(self._about)

    @property
    def version(self) -> str:
        """Of Kubernetes."""
        return self.programs.name.partition("-")[2]

    @property
    def server(self) -> str:
        """The address of the API server on this machine."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """The port of the API server."""
        return self._about["apiserver"]

    @property
    def admin(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "keys" / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """What the API server was asked, a JSON object on a line."""
        return self.folder / "audit.jsonl"

    def up(self, *, bare: bool = False, lean: bool = False) -> None:
        """Bring it up.

        Args:
            bare: only etcd and the API server.
            lean: without controllers: what they would have made for pods is made once.
        """
        self.folder.mkdir(parents=True)
        self.authority.make()
        self._about = dict(zip(("apiserver", "etcd", "peers"), free_ports(3), strict=True))
        write_whole(self._record, json.dumps(self._about))
        self.authority.certificate("apiserver", hosts=SERVER_NAMES)
        self.authority.certificate(
            "kubelet-client", user="kube-apiserver-kubelet-client", group="system:masters"
        )
        self.authority.kubeconfig("admin", self.server, group="system:masters")
        with step("starting etcd and the API server"):
            self._start_etcd()
            self.start_api_server()
        if bare:
            return
        with step("starting the scheduler" if lean else "starting the controller manager and the scheduler"):
            if lean:
                self.until(lambda: self.found("/api/v1/namespaces/default"), "there are namespaces")
                self.kubectl("create", "serviceaccount", "default", "-n", "default")
            else:
                self._start_controllers()
            configuration = self.scheduler_configuration("scheduler")
            self.processes.start("kube-scheduler", scheduler_command(self.programs, configuration))
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self.until(lambda: self.found(account), "pods have an account")

    def down(self, keep: Path | None = None) -> None:
        """End everything that was started and remove the folder; logs go to `keep`."""
        self.processes.end_all()
        if keep is not None:
            shutil.rmtree(keep, ignore_errors=True)
            keep.mkdir(parents=True)
            for log in [*self.folder.glob("*.log"), self.audit_log]:
                if log.exists():
                    shutil.move(log, keep / log.name)
        shutil.rmtree(self.folder)
        self._about = {}

    def start_api_server(self) -> None:
        """Start the API server and wait until it is ready."""
        keys = self.folder / "keys"
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        self.processes.start(
            "kube-apiserver",
            [
                self.programs / "kube-apiserver",
                f"--etcd-servers=http://127.0.0.1:{self._about['etcd']}",
                "--bind-address=127.0.0.1", f"--secure-port={self.port}",
                # no interface has it: the service's endpoint would be this machine's address otherwise
                "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
                f"--tls-cert-file={keys}/apiserver.crt", f"--tls-private-key-file={keys}/apiserver.key",
                f"--client-ca-file={self.authority.ca}",
                f"--service-account-issuer={ISSUER}", "--service-account-extend-token-expiration=false",
                f"--service-account-key-file={self.authority.accounts_key}",
                f"--service-account-signing-key-file={self.authority.accounts_key}",
                f"--kubelet-client-certificate={keys}/kubelet-client.crt", f"--kubelet-client-key={keys}/kubelet-client.key",
                "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
                "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true", "--profiling=false",
                f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}", "--audit-log-mode=blocking-strict",
            ],
        )  # fmt: skip
        self.until(self._is_ready, "the API server is ready", program="kube-apiserver")

    def scheduler_configuration(self, name: str, fields: Mapping[str, Any] | None = None) -> Path:
        """A file with the KubeSchedulerConfiguration of a scheduler of this cluster, with these fields."""
        user = self.authority.kubeconfig("scheduler", self.server, user="system:kube-scheduler")
        file = self.folder / f"{name}.json"
        whole = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(user)},
            **(fields or {}),
        }
        file.write_text(json.dumps(whole))
        return file

    def _start_etcd(self) -> None:
        client, peers = (f"http://127.0.0.1:{self._about[name]}" for name in ("etcd", "peers"))
        self.processes.start(
            "etcd",
            [
                self.programs / "etcd", "--name=one", f"--data-dir={self.folder}/etcd", "--log-level=warn",
                f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=one={peers}",
                "--unsafe-no-fsync",  # nothing of it outlives the machine
            ],
        )  # fmt: skip

    def _start_controllers(self) -> None:
        user = self.authority.kubeconfig(
            "controller-manager", self.server, user="system:kube-controller-manager"
        )
        self.processes.start(
            "kube-controller-manager",
            [
                self.programs / "kube-controller-manager", f"--kubeconfig={user}", "--leader-elect=false", "--secure-port=0",
                f"--service-account-private-key-file={self.authority.accounts_key}", f"--root-ca-file={self.authority.ca}",
                f"--cluster-signing-cert-file={self.authority.ca}", f"--cluster-signing-key-file={self.folder}/keys/ca.key",
                "--use-service-account-credentials=true",
                # an emulated kubelet is slow, and a played node has none
                "--node-monitor-grace-period=2h", "--node-startup-grace-period=2h",
            ],
        )  # fmt: skip

    # Questions

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str | None = "application/json",
        agent: str = "",
    ) -> tuple[int, Any]:
        """One request as the administrator: status and what the answer holds, text where it is no JSON."""
        certificate, key = self.authority.certificate("admin", group="system:masters")
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        context.load_cert_chain(certificate, key)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            headers = {"Content-Type": content_type} if data is not None and content_type else {}
            headers |= {"User-Agent": agent} if agent else {}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def get(self, path: str) -> Object:
        """An object or a list.

        Raises:
            RefusedError: there is none, or it may not be read.
        """
        status, answer = self.ask("GET", path)
        if status >= 400:
            raise RefusedError(status, str(answer))
        return answer

    def found(self, path: str) -> Object | None:
        """An object; None where there is none or the server does not answer."""
        try:
            return self.get(path)
        except (RefusedError, OSError, http.client.HTTPException):
            return None

    def kubectl(self, *words: str, text: str = "", fails: bool = False, **environment: str) -> str:
        """What kubectl prints as the administrator, on both streams.

        Raises:
            LabError: it ended otherwise than expected.
        """
        command = [str(self.programs / "kubectl"), "--kubeconfig", str(self.admin), *words]
        home = {"HOME": str(self.folder), "PATH": "/usr/bin:/bin", **environment}
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, env=home, check=False
        )
        if (done.returncode != 0) is not fails:
            raise LabError(
                f"kubectl {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout + done.stderr

    def until(
        self, fact: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S, program: str = ""
    ) -> Any:
        """Wait for a fact and return it.

        Raises:
            LabError: it did not come true, or the program ended.
        """
        deadline = time.monotonic() + patience_s
        while not (found := fact()):
            if program:
                self.processes.check(program)
            if time.monotonic() > deadline:
                raise LabError(f"waited {patience_s:g} s in vain until {what}")
            time.sleep(_TICK_S)
        return found

    def _is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False


def free_ports(count: int) -> Sequence[int]:
    """Ports of the loopback device that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def listens(port: int) -> bool:
    """Whether somebody listens on that port of the loopback device."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def scheduler_command(programs: Path, configuration: Path) -> list[str | Path]:
    """A kube-scheduler with that configuration."""
    return [programs / "kube-scheduler", f"--config={configuration}", "--secure-port=0", "-v=2"]
