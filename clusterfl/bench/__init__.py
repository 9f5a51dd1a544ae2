"""How fast is it: workloads, the plain loop beside them, and the practical limit of this machine."""
