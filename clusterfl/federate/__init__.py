"""A federation of real processes and machines: its folder, its keys, its server and nodes, its models in service."""
