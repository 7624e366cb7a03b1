"""Native model families, one file each, behind one registry by architecture name."""
