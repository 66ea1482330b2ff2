"""What becomes of a number of CPUs that does not fill its last core.

Source: the rule `kubelet` is that of kubelet v1.36: only full-pcpus-only refuses such a number.
Differs: the other rules exist only here.
"""

from nri_plugin.errors import SMTAlignmentError
from nri_plugin.options import SMTOddCounts


def whole_core_count(rule: SMTOddCounts, count: int, threads: int) -> int:
    """How many exclusive CPUs a container gets that asks for `count`.

    Args:
        rule: `round-up` gives the rest of the last core too; `kubelet` and `allow` give what was asked
            for (whether full-pcpus-only refuses it then is decided with `checks_multiple`).
        count: exclusive CPUs asked for, 0 for none.
        threads: CPUs per core; 1 leaves every number as it is.

    Raises:
        SMTAlignmentError: the rule is `reject` and the last core would be shared.
    """
    odd = count % threads
    if not odd or rule in {SMTOddCounts.KUBELET, SMTOddCounts.ALLOW}:
        return count
    if rule is SMTOddCounts.ROUND_UP:
        return count + threads - odd
    what = "not a multiple of" if count > threads else "less than"
    core = f"the {threads} cpus per core" if count > threads else f"the {threads} cpus of a core"
    raise SMTAlignmentError(
        f"requested {count} cpus is {what} {core} and smtOddCounts is reject; "
        f"ask for {whole_cores_near(count, threads)}"
    )


def whole_cores_near(count: int, threads: int) -> str:
    """The numbers of CPUs in whole cores below and above `count`, in words; nobody is told to ask for none."""
    below = count - count % threads
    return f"{below} or {below + threads}" if below else str(threads)


def checks_multiple(rule: SMTOddCounts) -> bool:
    """Whether full-pcpus-only refuses a number that does not fill its last core; `allow` overrules it."""
    return rule is not SMTOddCounts.ALLOW
