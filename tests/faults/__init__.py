"""Faults on purpose: every row of the table in docs/faults.md, small in `make test`, in full in `make faults`."""
