"""The official metrics of the tasks: labels and scores through scikit-learn and SciPy, answers and BIO tags by hand."""
