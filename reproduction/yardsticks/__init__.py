"""The field's own yardsticks: published comparisons of methods, run by our code beside the published values."""
