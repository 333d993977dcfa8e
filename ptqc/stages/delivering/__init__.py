"""The files of an artifact, checked before they are published."""
