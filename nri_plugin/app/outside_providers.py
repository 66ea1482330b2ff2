"""Hint providers of other installed packages: found by entry point, loaded before the runtime is told of us.

One that cannot be loaded stops the start: containers placed without it would be placed wrongly, silently.
"""

from importlib.metadata import EntryPoint, entry_points

from nri_plugin.errors import ConfigError
from nri_plugin.options import HintProvider

GROUP = "nri_pin.hint_providers"


def load_hint_providers() -> tuple[HintProvider, ...]:
    """The providers of all installed packages, ordered by name.

    Raises:
        ConfigError: one cannot be imported, or is nothing that can be asked; names its entry point.
    """
    return tuple(_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _load(point: EntryPoint) -> HintProvider:
    where = f"entry point {point.name} of {GROUP}"
    try:
        provider = point.load()
    except Exception as error:  # noqa: BLE001 - importing runs code of others
        detail = f"{point.value} cannot be loaded: {error}; repair or remove the package that brings it"
        raise ConfigError(where, detail) from None
    if not callable(provider):
        raise ConfigError(where, f"{point.value} is no function; expected one that takes a question")
    found: HintProvider = provider
    return found
