"""one_model"""
