"""fits"""
