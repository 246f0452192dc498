"""A library that starts a thread as it is imported."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
