#!/usr/bin/env python3
"""Sums over all GPUs of the host by NCCL, through PyTorch: one process for each GPU, many sums in a captured graph.

    python3 torch_all_reduce.py

Prints the median time of a sum, and the bus bandwidth as NCCL defines it. The example `group` of kiln prints the same of kiln.
"""

import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

# Bytes, and sums in a graph.
SIZES = [(16 << 10, 50), (256 << 10, 50), (1 << 30, 10)]
SAMPLES = 7


def work(rank, count):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(count))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    for size, sums in SIZES:
        x = torch.randn(size // 4, device="cuda") * 1e-3
        for _ in range(5):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(sums):
                dist.all_reduce(x)
        samples = []
        for _ in range(SAMPLES):
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            samples.append((time.perf_counter() - start) / sums)
        seconds = statistics.median(samples)
        if rank == 0:
            bandwidth = 2 * (count - 1) / count * size / seconds / 1e9
            print(f"sum of {size:>11} bytes: {seconds * 1e6:10.1f} us, {bandwidth:6.1f} GB/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    gpus = torch.cuda.device_count()
    multiprocessing.spawn(work, args=(gpus,), nprocs=gpus)
