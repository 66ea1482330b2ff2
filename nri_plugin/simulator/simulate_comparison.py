"""What differs between two simulations of the same pods on the same machine: per container first, then sums."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """A container that the two configurations treat differently.

    Attributes:
        key: `NAMESPACE/POD/CONTAINER`.
        what: `placed` (one refuses it), `cpus`, `mems`, `devices` or `kind` (own CPUs with one, the shared pool with the
            other); the gravest first.
        before: with the first configuration, in words.
        after: with the second.
    """

    key: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Sum:
    """One figure with both configurations; `better` is the number, 1 or 2, of the one that does better, 0 for neither."""

    name: str
    before: float
    after: float
    better: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two simulations.

    Attributes:
        configuration: (key, with the first, with the second) of what the configurations say differently.
        containers: in the order of the scenario.
        alike: how many containers get the same.
        sums: figures, all of them.
    """

    configuration: tuple[tuple[str, str, str], ...]
    containers: tuple[Difference, ...]
    alike: int
    sums: tuple[Sum, ...]
