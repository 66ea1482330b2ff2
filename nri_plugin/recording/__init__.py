"""Recordings: events on disk, and their replay."""
