"""Trainers of others, switched to our operator: `paddleformers`, `paddlenlp`.

Each module imports its trainer when it is used, and says what to install if it is not there.
"""
