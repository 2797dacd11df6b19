"""BERT and its relatives on packed tokens, as code of one device; distribution is applied from outside.

From the bottom up: ``layers``; ``deberta`` and ``modern``; ``encoder``; ``bert``, which says what a model returns;
``electra``; and ``build``. ``key_maps`` and ``convert`` translate weights from and to Hugging Face.
"""
