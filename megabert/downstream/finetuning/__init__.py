"""Fine-tuning: labelled examples, a head on the encoder, a score.

In the order in which a fine-tuning runs:

1. ``setup`` reads model, tokenizer and files and checks them before anything is written. The task is a row of the
   table in ``tasks``; how examples become sequences, labels and scores is one of the six ``task_kinds``, with the
   official ``metrics``. ``tables`` reads files with named columns.
2. ``trainer`` trains the encoder with its head (``model``) on micro-batches (``batches``), scores sets with the present
   weights, and keeps the best ones.
3. ``saved_model`` writes the result as a model folder that transformers loads, and reads such a folder to score it.

``finetune`` does these for one seed after the other and keeps the finished ones (``seed_results``). ``grid`` runs one
such fine-tuning per cell, side by side: ``cells`` says which there are, ``survey`` measures before it starts, and
``grid_results`` chooses. ``comparison`` looks at finished ones.
"""
