#!/usr/bin/env python3
"""Writes a GGUF model of random weights, to measure speed: the shapes are those of real models, the text is not.

    pip install gguf numpy
    python3 benches/llm/random_model.py 1b model-f16.gguf
    kiln-llm quantize model-f16.gguf model-q4_k_m.gguf q4_k_m
    kiln-llm bench model-q4_k_m.gguf --device cuda

Shapes: 1b has 1.1 billion weights, as TinyLlama, 8b has 8 billion and 70b has 70 billion, as Llama 3. Files are f16 and take two bytes
a weight. With --blocks they are random blocks of Q4_K and Q6_K, mixed as in Q4_K_M, and nothing has to be quantised. gpt-oss-20b has 21 billion, whose experts are in MXFP4: its file has 14 GB, and the script takes as much memory.
"""

import argparse
import sys

import gguf
import numpy as np

# Layers, width, width of the feed-forward network, heads, heads of keys and values, tokens, context.
SHAPES = {"1b": (22, 2048, 5632, 32, 4, 32_000, 8192), "8b": (32, 4096, 14_336, 32, 8, 128_256, 16_384), "70b": (80, 8192, 28_672, 64, 8, 128_256, 8192)}
# The same, with experts of each layer, and experts of a token: layers, width, width of an expert, experts, used, heads, heads of keys and
# values, elements of a head, tokens, context.
MIXTURES = {"gpt-oss-20b": (24, 2880, 2880, 32, 4, 64, 8, 64, 201_088, 131_072)}
# Numbers that are drawn once. Tensors begin at different ones, so that no two are alike.
DRAWN = 1 << 22


def random_blocks(kind, count, columns, random):
    """Blocks of 256 elements with which products keep the size of what they multiply."""
    if kind == gguf.GGMLQuantizationType.Q4_K:
        # A unit of scales and one of minima, 6-bit scales and minima, 4-bit integers. Minima are half the greatest number on average, and the
        # root of the mean square of `scale q - 7.5 minimum` is 258.
        blocks = random.integers(0, 256, (count, 144), dtype=np.uint8)
        unit = columns**-0.5 / 258
        blocks[:, :4] = np.frombuffer(np.array([unit, 7.5 * unit], np.float16).tobytes(), np.uint8)
    else:
        # Q6_K: 6-bit integers, 8-bit scales, and their unit; the root of the mean square is 1365.
        blocks = random.integers(0, 256, (count, 210), dtype=np.uint8)
        blocks[:, 208:] = np.frombuffer(np.array([columns**-0.5 / 1365], np.float16).tobytes(), np.uint8)
    return blocks


def vocabulary_of(writer, size):
    """Writes a vocabulary of SentencePiece: three control tokens, the bytes, and made-up words."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [f"\u2581w{i}" for i in range(size - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(size - 259)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (size - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gpt_oss(shape, path):
    layers, width, ffn, count, used, heads, kv_heads, head, vocabulary, context = shape
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "gpt-oss", use_temp_file=False)
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_expert_feed_forward_length(ffn)
    writer.add_expert_count(count)
    writer.add_expert_used_count(used)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(128)
    writer.add_rope_freq_base(150_000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    vocabulary_of(writer, vocabulary)

    def vector(name, *extents):
        writer.add_tensor(name, random.standard_normal(extents, dtype=np.float32) * np.float32(0.1))

    def matrix(name, rows, columns):
        numbers = random.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)
        writer.add_tensor(name, numbers.astype(np.float16))

    def experts(name, rows, columns):
        # 17 bytes have 32 elements: a power of two with which products keep the size of what they multiply, and four bits each.
        blocks = random.integers(0, 256, (count, rows, columns // 32, 17), dtype=np.uint8)
        # The root of the mean square of the numbers of four bits is 2.9.
        blocks[..., 0] = 127 + round(np.log2(columns**-0.5 / 2.9))
        kind = gguf.GGMLQuantizationType.MXFP4
        writer.add_tensor(f"{name}.weight", blocks.reshape(count, rows, columns // 32 * 17), raw_dtype=kind)
        vector(f"{name}.bias", count, rows)

    matrix("token_embd.weight", vocabulary, width)
    for i in range(layers):
        block = f"blk.{i}."
        for norm in ("attn_norm", "post_attention_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(width, np.float32))
        for part, rows, columns in (
            ("attn_q", heads * head, width),
            ("attn_k", kv_heads * head, width),
            ("attn_v", kv_heads * head, width),
            ("attn_output", width, heads * head),
        ):
            matrix(f"{block}{part}.weight", rows, columns)
            vector(f"{block}{part}.bias", rows)
        vector(f"{block}attn_sinks.weight", heads)
        writer.add_tensor(f"{block}ffn_gate_inp.weight", random.standard_normal((count, width), dtype=np.float32) * np.float32(width**-0.5))
        vector(f"{block}ffn_gate_inp.bias", count)
        experts(f"{block}ffn_gate_exps", ffn, width)
        experts(f"{block}ffn_up_exps", ffn, width)
        experts(f"{block}ffn_down_exps", width, ffn)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    matrix("output.weight", vocabulary, width)
    finish(writer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES | MIXTURES)
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--blocks", action="store_true", help="write random blocks of Q4_K and Q6_K")
    arguments = parser.parse_args()
    if arguments.shape in MIXTURES:
        gpt_oss(MIXTURES[arguments.shape], arguments.out)
        return 0
    layers, width, ffn, heads, kv_heads, vocabulary, context = SHAPES[arguments.shape]
    random = np.random.default_rng(1)
    drawn = random.standard_normal(DRAWN, dtype=np.float32)

    writer = gguf.GGUFWriter(arguments.out, "llama", use_temp_file=False)
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_file_type(15 if arguments.blocks else 1)
    vocabulary_of(writer, vocabulary)

    start = 0
    pools = {}

    def matrix(name, rows, columns, exact=False):
        nonlocal start
        start = (start + 1_048_583) % DRAWN
        if arguments.blocks:
            kind = gguf.GGMLQuantizationType.Q6_K if exact else gguf.GGMLQuantizationType.Q4_K
            if (kind, columns) not in pools:
                pools[kind, columns] = random_blocks(kind, DRAWN // 64, columns, random)
            pool = pools[kind, columns]
            blocks = np.resize(np.roll(pool, start % len(pool), axis=0), (rows * columns // 256, pool.shape[1]))
            writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind)
            return
        # Products keep the size of what they multiply.
        numbers = np.resize(np.roll(drawn, start), rows * columns) * np.float32(columns**-0.5)
        writer.add_tensor(name, numbers.astype(np.float16).reshape(rows, columns))

    head = width // heads
    matrix("token_embd.weight", vocabulary, width)
    for i in range(layers):
        block = f"blk.{i}."
        # The layers whose values and last products have more bits in Q4_K_M.
        eighth = layers // 8
        exact = i < eighth or i >= 7 * eighth or (i - eighth) % 3 == 2
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(width, np.float32))
        matrix(f"{block}attn_q.weight", width, width)
        matrix(f"{block}attn_k.weight", kv_heads * head, width)
        matrix(f"{block}attn_v.weight", kv_heads * head, width, exact)
        matrix(f"{block}attn_output.weight", width, width)
        matrix(f"{block}ffn_gate.weight", ffn, width)
        matrix(f"{block}ffn_up.weight", ffn, width)
        matrix(f"{block}ffn_down.weight", width, ffn, exact)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    matrix("output.weight", vocabulary, width, exact=True)
    finish(writer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
