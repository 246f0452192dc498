"""agreed"""
