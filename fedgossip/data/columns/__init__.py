"""columns"""
