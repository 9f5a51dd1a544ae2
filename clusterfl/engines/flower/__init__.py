"""Clients as nodes of a Flower federation: the same calls, as messages to devices that keep their data.

``messages`` is what crosses, ``engine`` the server's side, ``node`` the device's; only ``grid`` and ``records`` know
Flower itself.
"""
