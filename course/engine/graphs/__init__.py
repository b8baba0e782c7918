"""Decode steps as CUDA graphs: the whole forward pass launched at once.

    llm = LLM("smollm2", device="cuda", dtype=torch.float16)
    use_graphs(llm)

A decode step of a small model is some hundred small kernels; launching them one by one from Python
takes the CPU longer than the GPU needs to run them. A graph is recorded once and then launched
whole. Off unless asked for. Everything here but the recording itself is tested on a CPU; the
recording has not been run on a GPU yet (``make gpu-check`` runs it and compares the tokens).
"""

from course.engine.graphs.decode import CudaGraph, DecodeGraphs, GraphRunner, use_graphs

__all__ = ["CudaGraph", "DecodeGraphs", "GraphRunner", "use_graphs"]
