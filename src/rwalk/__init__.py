"""rwalk"""
