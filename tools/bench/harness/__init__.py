"""What every provider is measured with: cells, masks, clocks, the check, rows, tables, drawings."""
