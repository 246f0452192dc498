"""push_sum"""
