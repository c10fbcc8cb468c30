"""Calls and runs (`record`), what they add up to (`summary`, `report`), and what tools give
(`shapes`).
"""
