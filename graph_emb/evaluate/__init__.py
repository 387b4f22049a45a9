"""Evaluation of embeddings: node classification, accuracy on a split, link prediction and ranks.

* ``node_classification.node_classification``: F1 by DeepWalk's protocol.
* ``split_accuracy.split_accuracy``: accuracy on train, valid and test nodes.
* ``link_prediction.evaluate_link``, ``hits``, ``mrr``, ``roc_auc``, ``ogb_metrics``.
* ``ranks.rank``: realistic, optimistic and pessimistic ranks.
"""
