"""The commands, one file each: a module here with a ``register(app)`` is a command, and nothing else is needed."""
