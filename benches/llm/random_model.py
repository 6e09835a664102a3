#!/usr/bin/env python3
"""Writes a GGUF model of random weights, to measure speed: the shapes are those of real models, the text is not.

    pip install gguf numpy
    python3 benches/llm/random_model.py 1b model-f16.gguf
    kiln-llm quantize model-f16.gguf model-q4_k_m.gguf q4_k_m
    kiln-llm bench model-q4_k_m.gguf --device cuda

Shapes: 1b has 1.1 billion weights, as TinyLlama, and 8b has 8 billion, as Llama 3. Files are f16 and take two bytes a weight.
"""

import argparse
import sys

import gguf
import numpy as np

# Layers, width, width of the feed-forward network, heads, heads of keys and values, tokens, context.
SHAPES = {"1b": (22, 2048, 5632, 32, 4, 32_000, 8192), "8b": (32, 4096, 14_336, 32, 8, 128_256, 16_384)}
# Numbers that are drawn once. Tensors begin at different ones, so that no two are alike.
DRAWN = 1 << 22


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", help="the file to write")
    arguments = parser.parse_args()
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
    writer.add_file_type(1)
    # A vocabulary of SentencePiece: three control tokens, the bytes, and made-up words.
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [f"\u2581w{i}" for i in range(vocabulary - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(vocabulary - 259)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (vocabulary - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    start = 0

    def matrix(name, rows, columns):
        nonlocal start
        start = (start + 1_048_583) % DRAWN
        # Products keep the size of what they multiply.
        numbers = np.resize(np.roll(drawn, start), rows * columns) * np.float32(columns**-0.5)
        writer.add_tensor(name, numbers.astype(np.float16).reshape(rows, columns))

    head = width // heads
    matrix("token_embd.weight", vocabulary, width)
    for i in range(layers):
        block = f"blk.{i}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(width, np.float32))
        matrix(f"{block}attn_q.weight", width, width)
        matrix(f"{block}attn_k.weight", kv_heads * head, width)
        matrix(f"{block}attn_v.weight", kv_heads * head, width)
        matrix(f"{block}attn_output.weight", width, width)
        matrix(f"{block}ffn_gate.weight", ffn, width)
        matrix(f"{block}ffn_up.weight", ffn, width)
        matrix(f"{block}ffn_down.weight", width, ffn)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    matrix("output.weight", vocabulary, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
