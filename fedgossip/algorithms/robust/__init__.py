"""Rules that combine models despite malicious peers (`robust_mixing`), and the attacks to test them (`attacks`).  It
imports `base`.
"""
