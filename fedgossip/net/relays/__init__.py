"""relays"""
