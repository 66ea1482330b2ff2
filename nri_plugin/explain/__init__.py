"""Why a container got what it got, or was refused, as values. Pure."""
