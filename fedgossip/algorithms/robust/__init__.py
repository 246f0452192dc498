"""Rules that combine models in spite of malicious peers (`robust_mixing`), and the attacks to test them (`attacks`).
It imports `base`.
"""
