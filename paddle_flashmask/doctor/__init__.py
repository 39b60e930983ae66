"""The doctor, `python -m paddle_flashmask doctor`: is this installation sound, and if not, why.

It starts where Paddle and numpy do not: `installation` and `machine` look at files and programs
with the standard library alone, `children` runs the functions of `probes` (import Paddle, load the
library, compute) in processes of their own, which may fail or crash. `diagnosis` turns what was
found into one sentence for each thing that is wrong; `command` prints all of it.
"""
