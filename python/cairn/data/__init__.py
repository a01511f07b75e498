"""``cairn data``: text to Megatron's indexed datasets, by the tokenizers that everybody uses.

The program is ``cairn-data``, or ``python -m cairn.data``; ``cairn data`` starts it. It needs the extra
``cairn-checkpoints[data]``: tokenizers, sentencepiece and numpy, which are imported when they are used.
"""
