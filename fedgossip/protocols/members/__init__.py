"""members"""
