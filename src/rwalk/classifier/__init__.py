"""Estimators in scikit-learn's manner: classes and numbers that arrive over time, learned without forgetting."""
