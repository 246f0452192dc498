"""Compares a partner's Hello with ours: where both run the same experiment, their models may be mixed."""

from __future__ import annotations

from fedgossip.core.messages import Hello
from fedgossip.core.model_fingerprint import in_words
from fedgossip.net.transport import Rejected

SAME_FILE = "Start every peer from the same experiment file, model and data, with the same fedgossip."
OTHER_MODEL = "has another model, or other columns"
SAME_CODE = "Give every peer the same modules, and the files that they read; one of them was changed."


def refused(sender: int, theirs: Hello, ours: Hello) -> Rejected | None:
    """Return why no exchange with `sender` is possible; None where its models may be mixed with ours."""
    words = {
        "version": f"runs fedgossip {theirs.version:.20}, this is {ours.version}",
        "schema": OTHER_MODEL,
        "experiment": "runs another experiment, or has other data files",
    }
    changed = ours.likeness.changed(theirs.likeness)
    for name, text in words.items():
        if name == "experiment" and changed:  # the more specific reason first: their graph differs with its function
            break
        if getattr(theirs, name) != getattr(ours, name):
            return Rejected(sender, name, f"peer {sender} {text}", SAME_FILE)
    if unlike := ours.likeness.unlike(theirs.likeness):
        text = f"peer {sender} has another model: {in_words(unlike)} {'differ' if len(unlike) > 1 else 'differs'}"
        return Rejected(sender, unlike[0], f"{text}, behind {' and '.join(changed)}" if changed else text, SAME_CODE)
    return None
