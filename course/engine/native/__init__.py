"""What makes a CPU fast, apart from the engine that is to be read.

linear.py     matrix products with weights laid out in the order that oneDNN reads
kernels.c     the small operations and paged attention in C
library.py    finds a compiler, compiles once for this machine, checks the result, says why not
operations.py norm, rotary positions and SwiGLU on tensors
attention.py  one step's attention over the block tables; the write to slots
"""
