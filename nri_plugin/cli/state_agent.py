"""Whether an agent works on a state directory: who changes files there must not meet one."""

import fcntl
import os

from nri_plugin.cli.state_source import FailedError

LOCK_FILE = "lock"


def refuse_while_agent_runs(state_dir: str) -> None:
    """See that nobody holds the directory's lock at this moment.

    Raises:
        FailedError: an agent runs; names it.
    """
    descriptor = lock_if_there(state_dir)
    if descriptor is not None:
        os.close(descriptor)


def lock_if_there(state_dir: str) -> int | None:
    """The lock, to be closed; None where no agent ever worked.

    Raises:
        FailedError: an agent runs; names it.
    """
    path = os.path.join(state_dir, LOCK_FILE)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FailedError(f"{path}: cannot be opened: {error.strerror}; run as root") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        who = f"the agent with process id {holder}" if holder.isdecimal() else "an agent"
        raise FailedError(f"{state_dir}: {who} works on it; stop it first") from None
    return descriptor
