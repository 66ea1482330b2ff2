"""How `kubectl nri-pin` reaches the cluster: it runs kubectl, which has the credentials, the contexts and `exec`.

An error of kubectl becomes one sentence with the next step. kubectl prints the exit code of a program that it ran in a
pod as its last line on standard error, which tells such a failure from a failure of its own.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

PROGRAM = "kubectl"
TERMINATED = re.compile(r"^command terminated with exit code (\d+)$", re.MULTILINE)
EXIT_INTERRUPTED = 130


class KubectlError(click.ClickException):
    """kubectl is missing or has failed, or the cluster does not have what was named.

    Attributes:
        is_forbidden: the user lacks a right.
        is_missing: there is no such object, or no such kind.
    """

    exit_code = 1

    def __init__(self, message: str, *, is_forbidden: bool = False, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_forbidden, self.is_missing = is_forbidden, is_missing


@dataclass(frozen=True, slots=True)
class ExecAnswer:
    """What a program in a pod answered.

    Attributes:
        code: its exit code.
        output: its standard output; empty where it went to the terminal.
        complaint: its standard error.
    """

    code: int
    output: str
    complaint: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with its global options, such as `--context`."""

    options: tuple[str, ...] = ()

    def read(self, *words: str) -> Any:
        """The objects of `kubectl get WORDS -o json`.

        Raises:
            KubectlError: kubectl failed.
        """
        done = self._run(["get", *self.options, *words, "-o", "json"], captures=True)
        if done.returncode:
            raise failure(done.stderr)
        return json.loads(done.stdout)

    def execute(
        self,
        pod: Sequence[str],
        words: Sequence[str],
        *,
        captures: bool = True,
        has_terminal: bool = False,
        timeout_s: float | None = None,
    ) -> ExecAnswer:
        """Run a program in a pod.

        Args:
            pod: the words that name pod and container for `kubectl exec`.
            words: the program and its arguments.
            captures: return the output; else it goes to standard output while the program runs.
            has_terminal: give the program the terminal, for reading keys.
            timeout_s: give up after that time.

        Raises:
            KubectlError: kubectl could not run the program.
        """
        terminal = ["-i", "-t"] if has_terminal else []
        command = ["exec", *self.options, *pod, *terminal, "--", *words]
        done = self._run(command, captures=captures, keeps_errors=not has_terminal, timeout_s=timeout_s)
        complaint = done.stderr or ""
        ended = TERMINATED.search(complaint)
        if ended:
            return ExecAnswer(int(ended[1]), done.stdout or "", TERMINATED.sub("", complaint).strip())
        if done.returncode and not has_terminal:
            raise failure(complaint)
        return ExecAnswer(done.returncode, done.stdout or "", complaint.strip())

    def _run(
        self,
        words: Sequence[str],
        *,
        captures: bool,
        keeps_errors: bool = True,
        timeout_s: float | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        sys.stdout.flush()
        try:
            return subprocess.run(
                [PROGRAM, *words],
                stdin=None if not keeps_errors else subprocess.DEVNULL,
                stdout=subprocess.PIPE if captures else None,
                stderr=subprocess.PIPE if keeps_errors else None,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise KubectlError(
                "kubectl is not on the PATH; install it, or run nri-pin on the node itself"
            ) from None
        except subprocess.TimeoutExpired:
            raise KubectlError(f"no answer in {timeout_s:.0f} s") from None


def failure(complaint: str) -> KubectlError:
    """The error for what kubectl printed on standard error."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    # Warnings of the client precede the error.
    said = lines[-1] if lines else "kubectl failed without a word"
    text = re.sub(r"^(error|Error from server( \(\w+\))?): ", "", said)
    is_forbidden = "(Forbidden)" in said or " is forbidden: " in said
    is_missing = "(NotFound)" in said or "doesn't have a resource type" in said
    if is_forbidden:
        text += "; kubectl auth can-i --list shows your rights"
    return KubectlError(text, is_forbidden=is_forbidden, is_missing=is_missing)
