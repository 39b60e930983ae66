"""How a call of the C door lies in memory: `flashmask_call` of custom_ops/capi/flashmask_c.h.

In three parts, packed at once: setting the fields of a ctypes structure one by one takes longer
than the launches. What the memory to work in depends on; pointers and strides of tensors; where to
run.
"""

from __future__ import annotations

import struct

SIZES = struct.Struct("@7q2if3i")
TENSORS = struct.Struct("@3q" + "4q" * 4 + "q" + "4q" + "q" + "4q" * 3)
PLACE = struct.Struct("@3qi4x")
NO_TENSOR = (0, 0, 0, 0)
NO_BACKWARD = (*NO_TENSOR, 0, *NO_TENSOR * 3)  # of TENSORS in a forward
NO_WINDOW = (-1, -1)
FLOAT32, FLOAT16, BFLOAT16 = range(3)  # flashmask_dtype
