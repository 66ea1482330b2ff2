"""Hostile bytes for everything that comes from outside. Run by hack/fuzz; the laws are in the tests here."""
