"""Changes the code of the policy in small ways and looks whether a test notices; see `hack/mutants --help`."""
