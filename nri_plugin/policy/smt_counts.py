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
    raise SMTAlignmentError(
        f"requested {count} cpus is not a multiple of the {threads} cpus per core and smtOddCounts is "
        f"reject; ask for {count - odd} or {count - odd + threads}"
        if count > threads
        else f"requested {count} cpus is less than the {threads} cpus of a core and smtOddCounts is reject; "
        f"ask for {threads}"
    )


def checks_multiple(rule: SMTOddCounts) -> bool:
    """Whether full-pcpus-only refuses a number that does not fill its last core; `allow` overrules it."""
    return rule is not SMTOddCounts.ALLOW
