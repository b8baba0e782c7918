"""What makes a CPU fast, apart from the engine that is to be read.

kernels.c     the work of a step in C: what Python calls; its parts are the headers beside it
  team.h        threads that take pieces of work and wait for each other
  cells.h       stored numbers and vectors of them
  operations.h  norm, rotary positions, SwiGLU, the largest of a row
  linear.h      matrix products with weights in panels
  panels.h      keys and values turned into such panels
  attention.h   attention over the block table where it stands; a shared prefix once for all
library.py    finds a compiler, compiles once for this machine, checks the result, says why not
operations.py norm, rotary positions and SwiGLU on tensors
linear.py     a layer's matrix product, with its weights laid out as linear.h reads them
large_pages.py  memory for the weights that is quicker to read
attention.py  one step's attention over the block tables; the write to slots
runner.py     all layers of a step in one call
"""
