"""PyTorch beside the benches of CUDA: rows, sums, products, attention and sums from host to host, the others with graphs of the driver: launches do not count.

Prints one line a case: name, microseconds (median), GB/s or GFLOP/s; arguments choose cases by parts of their names. Needs
torch; without a GPU it says so.
"""

import statistics
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("torch is not installed")


SAMPLE = 25e-3  # seconds: as those of the table, so that a device that is limited by its power runs as fast for both


def timed(run, samples=11):
    """Median seconds of a call, of samples of about SAMPLE: calls captured once, replayed between two events."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()

    def sample(graph, calls):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / calls

    def captured(calls):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                run()
        return graph

    calls = 3
    graph = captured(calls)
    sample(graph, calls)
    calls = min(max(int(SAMPLE / sample(graph, calls)), 1), 1000)
    graph = captured(calls)
    sample(graph, calls)
    return statistics.median(sample(graph, calls) for _ in range(samples))


def row(name, run, amount, unit):
    """Measures and prints a case, where an argument of the program is part of its name or there is none."""
    if len(sys.argv) > 1 and not any(part in name for part in sys.argv[1:]):
        return
    seconds = timed(run)
    print(f"{name:<56}{seconds * 1e6:>12.1f} us {amount / seconds * 1e-9:>12.0f} {unit}", flush=True)


def add_from_host():
    """Sums of two vectors from host to host, each call by the clock of the host."""
    for n in (1000, 1_000_000, 16_000_000):
        name = f"add {n}, host to host"
        if len(sys.argv) > 1 and not any(part in name for part in sys.argv[1:]):
            continue
        a, b = torch.rand(n), torch.rand(n)
        samples = []
        for _ in range(min(20_000_000 // n, 1000) + 20):
            start = time.perf_counter()
            (a.cuda() + b.cuda()).cpu()
            samples.append(time.perf_counter() - start)
        print(f"{name:<56}{statistics.median(samples[5:]) * 1e6:>12.1f} us", flush=True)


def main():
    if not torch.cuda.is_available():
        sys.exit("there is no GPU of NVIDIA for torch")
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
    functional = torch.nn.functional
    for columns in [4096 << i for i in range(6)]:
        rows = (1 << 26) // columns
        x = torch.rand(rows, columns, device="cuda")
        out = torch.empty_like(x)
        weight, bias = torch.rand(columns, device="cuda"), torch.rand(columns, device="cuda")
        shape = f"{rows} x {columns}"
        bytes_touched = 8 * x.numel()
        row(f"copy {shape}", lambda: out.copy_(x), bytes_touched, "GB/s")
        row(f"softmax {shape}", lambda: torch.softmax(x, -1), bytes_touched, "GB/s")
        norm = lambda: functional.layer_norm(x, (columns,), weight, bias)
        row(f"layer_norm {shape}", norm, bytes_touched, "GB/s")
        row(f"rms_norm {shape}", lambda: functional.rms_norm(x, (columns,), weight), bytes_touched, "GB/s")
    x = torch.rand(1 << 28, device="cuda")
    row(f"sum of {x.numel()}", lambda: x.sum(), 4 * x.numel(), "GB/s")
    for m, k, n in [(n, n, n) for n in (1024, 2048, 4096, 8192)] + [
        (m, 4096, n) for m in (16, 64, 128) for n in (4096, 14336)
    ]:
        halves = [("f16", torch.float16, False), ("bf16", torch.bfloat16, False)]
        for name, dtype, tf32 in halves + [("f32", torch.float32, False), ("TF32", torch.float32, True)]:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            a = (torch.rand(m, k, device="cuda") * 2 - 1).to(dtype)
            b = (torch.rand(n, k, device="cuda") * 2 - 1).to(dtype)
            row(f"matmul {name} {m} x {k} x {n}", lambda: a @ b.T, 2 * m * k * n, "GFLOP/s")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    peers = [("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION)]
    for numbers, dtype, d in [("f16", torch.float16, 64), ("f16", torch.float16, 128), ("bf16", torch.bfloat16, 128)]:
        for causal in (False, True):
            for s in (2048, 8192, 16384):
                batch, heads = 16384 // s, 2048 // d
                q, k, v = (torch.rand(batch, heads, s, d, device="cuda").mul_(2).sub_(1).to(dtype) for _ in range(3))
                seen = s * (s + 1) // 2 if causal else s * s
                name = f"{'causal' if causal else 'attention'} {numbers} {batch} x {heads} x {s} x {d}"
                for peer, backend in peers:
                    with sdpa_kernel(backend):
                        run = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
                        row(f"{name} {peer}", run, 4 * batch * heads * d * seen, "GFLOP/s")
    add_from_host()
    heads, kv_heads, t, d = 32, 8, 8192, 128
    for batch in (1, 16):
        q = torch.rand(batch, heads, 1, d, device="cuda").mul_(2).sub_(1).half()
        k, v = (torch.rand(batch, kv_heads, t, d, device="cuda").mul_(2).sub_(1).half() for _ in range(2))
        name = f"decode f16 {batch} x {heads} of {kv_heads} x {t} x {d}"
        for peer, backend in peers:
            with sdpa_kernel(backend):
                run = lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
                row(f"{name} {peer}", run, 4 * (q.numel() + k.numel()), "GB/s")


main()
