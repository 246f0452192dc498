"""Commands with which people connect: host, join, keys, relay.

It imports `drivers` and `net`.  `fedgossip host FILE` prints an invite and calls `drivers.invite_joining`.
"""
