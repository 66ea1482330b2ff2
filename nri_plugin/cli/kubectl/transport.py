"""How `kubectl nri-pin` reaches the cluster: it runs kubectl, which has the credentials, the contexts and `exec`.

An error of kubectl becomes one sentence with the next step. kubectl prints the exit code of a program that it ran in a
pod as its last line on standard error, which tells such a failure from a failure of its own.
"""

import json
import os
import re
import signal
import subprocess
import termios
import tty
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import click

from nri_plugin.cli.output import relay

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
        done = self._run(["get", *self.options, *words, "-o", "json"])
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
            captures: return the output; else it goes to standard output while the program runs, as `relay` shows it.
            has_terminal: give the program the terminal, for reading keys.
            timeout_s: give up after that time.

        Raises:
            KubectlError: kubectl could not run the program.
        """
        terminal = ["-i", "-t"] if has_terminal else []
        command = ["exec", *self.options, *pod, *terminal, "--", *words]
        if captures:
            done = self._run(command, timeout_s=timeout_s)
        else:
            done = _relayed_screen(command) if has_terminal else _relayed(command)
        complaint = done.stderr or ""
        ended = TERMINATED.search(complaint)
        if ended:
            return ExecAnswer(int(ended[1]), done.stdout or "", TERMINATED.sub("", complaint).strip())
        if done.returncode and not has_terminal:
            raise failure(complaint)
        return ExecAnswer(done.returncode, done.stdout or "", complaint.strip())

    def _run(
        self, words: Sequence[str], *, timeout_s: float | None = None
    ) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                [PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise _missing() from None
        except subprocess.TimeoutExpired:
            raise KubectlError(f"no answer in {timeout_s:.0f} s") from None


def _missing() -> KubectlError:
    return KubectlError("kubectl is not on the PATH; install it, or run nri-pin on the node itself")


def _relayed(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run kubectl and show its output while it runs."""
    with TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        except FileNotFoundError:
            raise _missing() from None
        with process:
            assert process.stdout is not None
            relay(process.stdout.fileno())
        errors.seek(0)
        return subprocess.CompletedProcess(
            words, process.returncode, "", errors.read().decode("utf-8", "replace")
        )


def _relayed_screen(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run kubectl with the terminal as its input, and show its output as a screen while it runs.

    kubectl tells the program the size of the terminal that is its output, and every change of it.
    """
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    former = signal.getsignal(signal.SIGWINCH)
    try:
        termios.tcsetwinsize(theirs, termios.tcgetwinsize(1))
        process = subprocess.Popen([PROGRAM, *words], stdout=theirs)
        os.close(theirs)

        def on_resize(_number: int, _frame: object) -> None:
            termios.tcsetwinsize(ours, termios.tcgetwinsize(1))
            process.send_signal(signal.SIGWINCH)

        signal.signal(signal.SIGWINCH, on_resize)
        with process:
            relay(ours, is_screen=True)
        return subprocess.CompletedProcess(words, process.returncode, "", "")
    except FileNotFoundError:
        raise _missing() from None
    finally:
        signal.signal(signal.SIGWINCH, former)
        os.close(ours)


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
