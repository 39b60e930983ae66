"""Print the two lines of a YAML file that switch ours on."""

from __future__ import annotations

from pathlib import Path

from paddle_flashmask.integrations.paddleformers.layers import NAME

if __name__ == "__main__":
    print(f"custom_register_path: {Path(__file__).with_name('register.py')}")
    print(f"_attn_implementation: {NAME}")
