"""Published numbers and claims, computed again by what is here: `fedgossip repro`."""
