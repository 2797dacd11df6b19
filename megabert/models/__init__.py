"""BERT and its relatives on packed tokens, as code of one device; distribution is applied from outside.

From the bottom up: ``layers``; ``embeddings``, ``heads``, ``deberta``; ``encoder``; ``bert``; ``electra``; ``build``.
``objectives`` says what a model returns, ``key_maps`` and ``convert`` translate weights from and to Hugging Face.
"""
