"""The mask viewer, `python -m paddle_flashmask mask`: a mask drawn, counted and explained.

numpy only. `sources` reads what is to be seen, `blocks` brings it to the size of a picture, `text`,
`svg` and `png` draw that, `summary` says what the mask costs (with the measured `rates`), and
`explanation` why one row sees one column or does not.
"""
