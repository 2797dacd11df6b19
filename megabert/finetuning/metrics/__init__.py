"""Official metrics: of labels and scores through scikit-learn and SciPy, of answers and of BIO tags our own."""
