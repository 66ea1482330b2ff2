"""The facts of a pod in a checkpoint's line; a change here is a new version of the file, as in `checkpoint_rows`."""

from msgspec import Struct

from nri_plugin.pod_facts import Amounts, ContainerFacts, Kind, PodFacts, QOSClass


class AmountsRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An `Amounts`."""

    cpu_request_milli: int = 0
    cpu_limit_milli: int = 0
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()


NO_AMOUNTS = AmountsRow()


class ContainerFactsRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `ContainerFacts`."""

    name: str
    kind: Kind = Kind.APP
    amounts: AmountsRow | None = None


class PodFactsRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `PodFacts`."""

    uid: str
    qos: QOSClass
    containers: tuple[ContainerFactsRow, ...] = ()
    pod_resources: AmountsRow | None = None


def pod_facts_row(facts: PodFacts) -> PodFactsRow:
    """The row of a pod's facts."""
    return PodFactsRow(
        uid=facts.uid,
        qos=facts.qos,
        containers=tuple(
            ContainerFactsRow(one.name, one.kind, None if one.amounts == Amounts() else _row(one.amounts))
            for one in facts.containers
        ),
        pod_resources=None if facts.pod_resources is None else _row(facts.pod_resources),
    )


def pod_facts_from(row: PodFactsRow) -> PodFacts:
    """A pod's facts from their row."""
    return PodFacts(
        row.uid,
        row.qos,
        tuple(ContainerFacts(one.name, one.kind, _from(one.amounts or NO_AMOUNTS)) for one in row.containers),
        None if row.pod_resources is None else _from(row.pod_resources),
    )


def _row(amounts: Amounts) -> AmountsRow:
    return AmountsRow(
        amounts.cpu_request_milli,
        amounts.cpu_limit_milli,
        amounts.memory_request_bytes,
        amounts.memory_limit_bytes,
        amounts.hugepages,
    )


def _from(row: AmountsRow) -> Amounts:
    return Amounts(
        row.cpu_request_milli,
        row.cpu_limit_milli,
        row.memory_request_bytes,
        row.memory_limit_bytes,
        row.hugepages,
    )
