"""BERT and its relatives on packed tokens, as code of one device; distribution is applied from outside.

From the bottom up: ``layers``; ``deberta`` and ``modern``; ``encoder``; ``bert``, with the output of a model;
``electra``; and ``build``. ``key_maps`` and ``convert`` translate weights from and to Hugging Face.
"""
