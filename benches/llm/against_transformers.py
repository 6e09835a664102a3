#!/usr/bin/env python3
"""Compares the logits of kiln-llm with those of transformers, for a small model of random weights of each architecture.

    cargo build --release -p kiln-llm
    pip install torch transformers gguf numpy
    python3 benches/llm/against_transformers.py --kiln target/release/kiln-llm

A model's weights are drawn here under the names of transformers. transformers loads them; a GGUF file gets them with the names,
the keys and the changes of llama.cpp's converter, and a folder as `save_pretrained` writes it. All compute the logits of the same 40
tokens in f32. The table has the greatest distance of a logit, divided by the greatest logit, over four prefixes of the tokens, of the
file and of the folder. Exit codes: 0 every distance is within its limit, 1 one is not or a model failed, 2 wrong arguments.

Without PyTorch, --write DIR writes the files alone; against_llama_cpp.mjs compares them with llama.cpp. transformers 4.5x and 5.x both serve.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

VOCABULARY = 320
WIDTH = 64
FFN = 96
HEADS = 4
KV_HEADS = 2
EPS = 1e-5
CONTEXT = 512
TOKENS = [(i * i * 7 + 3 * i + 5) % VOCABULARY for i in range(40)]
PREFIXES = (1, 7, 23, 40)
LIMIT = 1e-4
# Products with MXFP4 round what they multiply to 16 bits.
MXFP4_LIMIT = 1e-3
# Gate, up and down of an expert.
EXPERT = {"mlp": ("gate_proj", "up_proj", "down_proj"), "block_sparse_moe": ("w1", "w3", "w2")}
# What four bits of MXFP4 encode.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


@dataclass
class Case:
    """A model: what transformers is asked for, and what a file says of it."""

    name: str
    # Class of the configuration and of the model, without their suffixes.
    hf: str
    arch: str
    # Arguments of the configuration beside those that all have.
    config: dict = field(default_factory=dict)
    # Scaling of positions, as transformers names it, and its base. Of Gemma 3 and OLMo 3 that of layers without a window.
    rope: dict = field(default_factory=dict)
    theta: float = 10_000.0
    local_theta: float | None = None
    # Keys of the file below the architecture's name.
    keys: dict = field(default_factory=dict)
    layers: int = 3
    head: int = WIDTH // HEADS
    tied: bool = False
    qkv_bias: bool = False
    # "head", "row" or None.
    qk_norm: str | None = None
    # Whether norms follow attention and the feed-forward network, and whether norms go before them.
    norms_after: bool = False
    norms_before: bool = True
    fused: bool = False
    # Experts, how many a token has, and elements between the products of one; how transformers names their parts.
    experts: tuple | None = None
    expert_names: str = "mlp"
    # Whether the model is gpt-oss: biases of everything, sinks, and a tensor with the experts of a layer; and whether its experts are in
    # MXFP4.
    gpt_oss: bool = False
    mxfp4: bool = False
    # Whether rotations take neighbours (2i, 2i + 1) in the file, where transformers takes halves (i, i + n/2).
    interleaved: bool = False
    # Whether transformers adds 1 to the weights of norms, and files have the sum.
    plus_one: bool = False
    # Context of kiln-llm.
    context: int | None = None


def layer_types(windowed):
    return ["sliding_attention" if each else "full_attention" for each in windowed]


def cases():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    yarn_keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    short = [1.0 + 0.1 * i for i in range(8)]
    long = [1.0 + 0.9 * i for i in range(8)]
    longrope = {"rope_type": "longrope", "short_factor": short, "long_factor": long}

    def phi3_keys(original):
        return {
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(CONTEXT / original) / math.log(original)),
            "rope.dimension_count": 16,
            "attention.sliding_window": 0,
        }

    five_of_six = [i % 6 != 5 for i in range(7)]
    three_of_four = [i % 4 != 3 for i in range(5)]
    gemma = dict(norms_after=True, plus_one=True, tied=True, head=32)
    exact_yarn = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    }
    gpt_oss = dict(
        hf="GptOss",
        arch="gpt-oss",
        gpt_oss=True,
        layers=4,
        head=32,
        theta=150_000.0,
        qkv_bias=True,
        experts=(6, 4, FFN),
        rope=exact_yarn,
        config={
            "num_local_experts": 6,
            "num_experts_per_tok": 4,
            "sliding_window": 8,
            "layer_types": layer_types([True, False, True, False]),
        },
        keys={
            "expert_count": 6,
            "expert_used_count": 4,
            "expert_feed_forward_length": FFN,
            "attention.sliding_window": 8,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 64,
        },
    )
    olmo = dict(norms_after=True, norms_before=False, qk_norm="row", arch="olmo2", layers=5)
    llama = dict(hf="Llama", arch="llama", interleaved=True)
    return [
        Case("llama", **llama),
        Case("llama3", **llama, rope=llama3, theta=500_000.0, tied=True),
        Case(
            "llama linear",
            **llama,
            rope={"rope_type": "linear", "factor": 2.5},
            keys={"rope.scaling.type": "linear", "rope.scaling.factor": 2.5},
        ),
        Case("llama yarn", **llama, rope=yarn, keys=yarn_keys),
        Case(
            "mistral",
            hf="Mistral",
            arch="llama",
            interleaved=True,
            config={"sliding_window": 8},
            keys={"attention.sliding_window": 8},
        ),
        Case("qwen2", hf="Qwen2", arch="qwen2", theta=1e6, qkv_bias=True),
        Case(
            "qwen2 yarn",
            hf="Qwen2",
            arch="qwen2",
            theta=1e6,
            qkv_bias=True,
            rope={**yarn, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3},
            keys={
                **yarn_keys,
                "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.yarn_beta_slow": 2.0,
                "rope.scaling.yarn_attn_factor": 1.3,
            },
        ),
        Case("qwen3", hf="Qwen3", arch="qwen3", theta=1e6, head=32, qk_norm="head", tied=True),
        Case(
            "qwen3moe",
            hf="Qwen3Moe",
            arch="qwen3moe",
            theta=1e6,
            head=32,
            qk_norm="head",
            experts=(8, 3, 32),
            config={
                "num_experts": 8,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 32,
                "norm_topk_prob": True,
            },
            keys={"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32},
        ),
        Case(
            "mixtral",
            hf="Mixtral",
            arch="llama",
            interleaved=True,
            theta=1e6,
            experts=(6, 2, FFN),
            expert_names="block_sparse_moe",
            config={"num_local_experts": 6, "num_experts_per_tok": 2},
            keys={"expert_count": 6, "expert_used_count": 2},
        ),
        Case(
            "gemma2",
            hf="Gemma2",
            arch="gemma2",
            **gemma,
            layers=4,
            config={
                "query_pre_attn_scalar": 32,
                "sliding_window": 8,
                "layer_types": layer_types([True, False, True, False]),
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 3.0,
            },
            keys={
                "attention.sliding_window": 8,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 3.0,
            },
        ),
        Case(
            "gemma3",
            hf="Gemma3Text",
            arch="gemma3",
            **gemma,
            layers=7,
            qk_norm="head",
            theta=1e6,
            local_theta=10_000.0,
            rope={"rope_type": "linear", "factor": 8.0},
            config={
                "query_pre_attn_scalar": 32,
                "sliding_window": 8,
                "layer_types": layer_types(five_of_six),
            },
            keys={
                "attention.sliding_window": 8,
                "rope.scaling.type": "linear",
                "rope.scaling.factor": 8.0,
            },
        ),
        Case("phi3", hf="Phi3", arch="phi3", fused=True, keys={"attention.sliding_window": 0}),
        Case(
            "phi3 window",
            hf="Phi3",
            arch="phi3",
            fused=True,
            config={"sliding_window": 8},
            keys={"attention.sliding_window": 8},
        ),
        Case(
            "phi3 longrope, long",
            hf="Phi3",
            arch="phi3",
            fused=True,
            config={"original_max_position_embeddings": 32},
            rope={**longrope, "original_max_position_embeddings": 32},
            keys=phi3_keys(32),
        ),
        Case(
            "phi3 longrope, short",
            hf="Phi3",
            arch="phi3",
            fused=True,
            config={"original_max_position_embeddings": 256},
            rope={**longrope, "original_max_position_embeddings": 256},
            keys=phi3_keys(256),
            context=256,
        ),
        Case(
            "granite",
            hf="Granite",
            arch="granite",
            interleaved=True,
            tied=True,
            config={
                "embedding_multiplier": 12.0,
                "attention_multiplier": 0.1,
                "residual_multiplier": 0.22,
                "logits_scaling": 8.0,
            },
            keys={
                "embedding_scale": 12.0,
                "attention.scale": 0.1,
                "residual_scale": 0.22,
                "logit_scale": 8.0,
            },
        ),
        Case("smollm3", hf="SmolLM3", arch="smollm3", interleaved=True, tied=True, layers=5, theta=2e6),
        Case("gpt-oss", **gpt_oss),
        Case("gpt-oss mxfp4", **gpt_oss, mxfp4=True),
        # As llama.cpp computes it.
        Case(
            "gpt-oss truncate",
            **{
                **gpt_oss,
                "rope": {**exact_yarn, "truncate": True},
                "keys": {**gpt_oss["keys"], "rope.scaling.yarn_truncate": True},
            },
        ),
        Case("olmo2", hf="Olmo2", **olmo),
        Case(
            "olmo3",
            hf="Olmo3",
            **olmo,
            rope=yarn,
            local_theta=10_000.0,
            config={"sliding_window": 8, "layer_types": layer_types(three_of_four)},
            keys={
                **yarn_keys,
                "attention.sliding_window": 8,
                "attention.sliding_window_pattern": three_of_four,
            },
        ),
    ]


def weights(case):
    """Random weights under the names of transformers."""
    random = np.random.default_rng(1)
    tensors = {}

    def matrix(name, rows, columns):
        tensors[name] = (random.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)

    def vector(name, n, around=0.0):
        tensors[name] = (around + 0.3 * random.standard_normal(n)).astype(np.float32)

    def norm(name, n):
        vector(name, n, 0.0 if case.plus_one else 1.0)

    q, kv = HEADS * case.head, KV_HEADS * case.head
    # Small, as an embedding that is the head, too, must not give logits that hide everything but the last token.
    matrix("model.embed_tokens.weight", VOCABULARY, WIDTH)
    for i in range(case.layers):
        layer = f"model.layers.{i}"
        attention = f"{layer}.self_attn"
        if case.fused:
            matrix(f"{attention}.qkv_proj.weight", q + 2 * kv, WIDTH)
            matrix(f"{layer}.mlp.gate_up_proj.weight", 2 * FFN, WIDTH)
        else:
            for part, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                matrix(f"{attention}.{part}.weight", rows, WIDTH)
                if case.qkv_bias:
                    vector(f"{attention}.{part}.bias", rows)
            if not case.experts:
                matrix(f"{layer}.mlp.gate_proj.weight", FFN, WIDTH)
                matrix(f"{layer}.mlp.up_proj.weight", FFN, WIDTH)
        matrix(f"{attention}.o_proj.weight", WIDTH, q)
        if case.gpt_oss:
            vector(f"{attention}.o_proj.bias", WIDTH)
            vector(f"{attention}.sinks", HEADS)
            count, _, inner = case.experts
            matrix(f"{layer}.mlp.router.weight", count, WIDTH)
            vector(f"{layer}.mlp.router.bias", count)
            experts = f"{layer}.mlp.experts"
            # Large enough that some of their outputs are clamped.
            for part, inputs, outputs, size in (("gate_up_proj", WIDTH, 2 * inner, 3), ("down_proj", inner, WIDTH, 1)):
                drawn = random.standard_normal((count, inputs, outputs)) * (size / math.sqrt(inputs))
                if case.mxfp4:
                    # Multiples of 1/8 that MXFP4 has, so that a file and a folder have the same.
                    drawn = E2M1[np.abs(drawn[..., None] * 8 - E2M1).argmin(-1)] / 8
                tensors[f"{experts}.{part}"] = drawn.astype(np.float32)
                tensors[f"{experts}.{part}_bias"] = (0.3 * random.standard_normal((count, outputs))).astype(np.float32)
        elif case.experts:
            count, _, inner = case.experts
            matrix(f"{layer}.{case.expert_names}.gate.weight", count, WIDTH)
            for expert in range(count):
                gate, up, down = EXPERT[case.expert_names]
                own = f"{layer}.{case.expert_names}.experts.{expert}"
                matrix(f"{own}.{gate}.weight", inner, WIDTH)
                matrix(f"{own}.{up}.weight", inner, WIDTH)
                matrix(f"{own}.{down}.weight", WIDTH, inner)
        else:
            matrix(f"{layer}.mlp.down_proj.weight", WIDTH, FFN)
        if case.qk_norm:
            norm(f"{attention}.q_norm.weight", q if case.qk_norm == "row" else case.head)
            norm(f"{attention}.k_norm.weight", kv if case.qk_norm == "row" else case.head)
        if case.norms_before:
            norm(f"{layer}.input_layernorm.weight", WIDTH)
        # Before the feed-forward network, or after attention where norms follow.
        norm(f"{layer}.post_attention_layernorm.weight", WIDTH)
        if case.norms_after:
            norm(f"{layer}.post_feedforward_layernorm.weight", WIDTH)
            if case.norms_before:
                norm(f"{layer}.pre_feedforward_layernorm.weight", WIDTH)
    norm("model.norm.weight", WIDTH)
    if not case.tied:
        matrix("lm_head.weight", VOCABULARY, WIDTH)
    return tensors


def file_name(case, name):
    """llama.cpp's name of a tensor of transformers."""
    plain = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "mlp.gate": "ffn_gate_inp",
        "mlp.router": "ffn_gate_inp",
        "block_sparse_moe.gate": "ffn_gate_inp",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm" if case.norms_after else "ffn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    stem, kind = name.rsplit(".", 1)
    if stem in plain:
        return f"{plain[stem]}.{kind}"
    _, _, i, part = stem.split(".", 3)
    if kind == "sinks":
        return f"blk.{i}.attn_sinks.weight"
    if case.gpt_oss and part == "post_attention_layernorm":
        return f"blk.{i}.post_attention_norm.{kind}"
    return f"blk.{i}.{parts[part]}.{kind}"


def stacked(case, tensors):
    """The tensors with those of all experts of a layer as one, by its name in a file."""
    if not case.experts:
        return tensors
    found = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for i in range(case.layers):
        if case.gpt_oss:
            # Outputs first, and those of gate and up apart.
            own = f"model.layers.{i}.mlp.experts"
            for theirs, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
                for at, part in enumerate(parts):
                    weight = tensors[f"{own}.{theirs}"].swapaxes(1, 2)[:, at :: len(parts)]
                    found[f"blk.{i}.ffn_{part}_exps.weight"] = weight
                    found[f"blk.{i}.ffn_{part}_exps.bias"] = tensors[f"{own}.{theirs}_bias"][:, at :: len(parts)]
            continue
        for part, theirs in zip(("gate", "up", "down"), EXPERT[case.expert_names]):
            own = f"model.layers.{i}.{case.expert_names}.experts"
            names = [f"{own}.{e}.{theirs}.weight" for e in range(case.experts[0])]
            found[f"blk.{i}.ffn_{part}_exps.weight"] = np.stack([tensors[name] for name in names])
    return found


def neighbours(tensor, heads):
    """Rows of each head in the order of rotations of neighbours: halves are interleaved."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def llama3_divisors(case):
    """What Llama 3.1 divides the angles of pairs by."""
    rope = case.rope
    divisors = []
    for i in range(case.head // 2):
        wavelength = 2 * math.pi * case.theta ** (2 * i / case.head)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if turns > high:
            divisors.append(1.0)
        elif turns < low:
            divisors.append(rope["factor"])
        else:
            share = (turns - low) / (high - low)
            divisors.append(1 / ((1 - share) / rope["factor"] + share))
    return divisors


def write(case, tensors, path):
    """Writes the file as llama.cpp's converter would."""
    import gguf

    writer = gguf.GGUFWriter(path, case.arch)
    keys = {
        "block_count": case.layers,
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": case.head,
        "attention.value_length": case.head,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.freq_base": case.theta,
        **case.keys,
    }
    for key, value in keys.items():
        key = f"{case.arch}.{key}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    writer.add_tokenizer_model("llama")
    # llama.cpp, which reads these files, too, wants the bytes and the ids.
    texts = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    writer.add_token_list(texts + [f"t{i}" for i in range(len(texts), VOCABULARY)])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (VOCABULARY - len(texts)))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in stacked(case, tensors).items():
        if case.interleaved and ("q_proj" in name or "k_proj" in name):
            tensor = neighbours(tensor, HEADS if "q_proj" in name else KV_HEADS)
        if case.plus_one and name.endswith("norm.weight"):
            tensor = tensor + np.float32(1)
        theirs = name if name.startswith("blk.") else file_name(case, name)
        if case.mxfp4 and theirs.endswith("_exps.weight"):
            kind = gguf.GGMLQuantizationType.MXFP4
            writer.add_tensor(theirs, gguf.quants.quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)
            continue
        writer.add_tensor(theirs, np.ascontiguousarray(tensor))
    kind = case.rope.get("rope_type")
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array(llama3_divisors(case), dtype=np.float32))
    elif kind == "longrope":
        for which in ("short", "long"):
            factors = np.array(case.rope[f"{which}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def configuration(case, transformers):
    """The configuration, by the arguments of the version."""
    arguments = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": case.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": case.head,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "tie_word_embeddings": case.tied,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
        **case.config,
    }
    if case.head == WIDTH // HEADS:
        # Some configurations have no such argument.
        del arguments["head_dim"]
    kind = getattr(transformers, f"{case.hf}Config")
    if int(transformers.__version__.split(".")[0]) >= 5:
        rope = {"rope_type": "default", "rope_theta": case.theta, **case.rope}
        local = {"rope_type": "default", "rope_theta": case.local_theta}
        both = {"full_attention": rope, "sliding_attention": local}
        # Some configurations have one for each type of layer.
        nested = "full_attention" in (kind().rope_parameters or {})
        arguments["rope_parameters"] = both if nested else rope
    else:
        arguments["rope_theta"] = case.theta
        if case.hf == "Gemma3Text":
            arguments["rope_local_base_freq"] = case.local_theta
        if case.rope and case.hf == "Phi3":
            # It expects these three.
            factors = {name: case.rope[name] for name in ("short_factor", "long_factor")}
            arguments["rope_scaling"] = {"type": case.rope["rope_type"], **factors}
        elif case.rope:
            arguments["rope_scaling"] = dict(case.rope)
    return kind(**arguments)


def tokenizer():
    """A tokenizer.json of as many tokens as the models have, which kiln-llm wants beside weights."""
    texts = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    texts += [f"t{i}" for i in range(len(texts), VOCABULARY)]
    added = [{"id": i, "content": texts[i], "special": True} for i in range(3)]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "first",
            "split": False,
        },
        "post_processor": None,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [],
        },
    }


def joined(case, tensors, known):
    """The tensors by the names that a model has in memory: since transformers 5 those of all experts are one, gate and up together."""
    if not case.experts or case.gpt_oss or "model.layers.0.mlp.experts.down_proj" not in known:
        return tensors
    found = {name: tensor for name, tensor in tensors.items() if f".{case.expert_names}." not in name}
    for i in range(case.layers):
        layer = f"model.layers.{i}"
        own = f"{layer}.{case.expert_names}"
        gate, up, down = (
            np.stack([tensors[f"{own}.experts.{e}.{part}.weight"] for e in range(case.experts[0])])
            for part in EXPERT[case.expert_names]
        )
        found[f"{layer}.mlp.gate.weight"] = tensors[f"{own}.gate.weight"]
        found[f"{layer}.mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        found[f"{layer}.mlp.experts.down_proj"] = down
    return found


def pack(folder):
    """Rewrites the experts of a folder of gpt-oss in MXFP4, as OpenAI's files have them."""
    import torch
    from safetensors.torch import load_file, save_file

    sizes, names = 0, {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors = {}
        for name, tensor in load_file(path).items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                tensors[name] = tensor
                continue
            # [experts, outputs, inputs]; pairs of neighbours in a byte, the first in the lower bits.
            weight = tensor.numpy().swapaxes(1, 2) * 8
            codes = np.abs(weight[..., None] - E2M1).argmin(-1).astype(np.uint8)
            pairs = codes[..., ::2] | codes[..., 1::2] << 4
            shape = (*codes.shape[:2], codes.shape[2] // 32)
            tensors[f"{name}_blocks"] = torch.from_numpy(pairs.reshape(*shape, 16))
            # 2^(124 - 127) is 1/8.
            tensors[f"{name}_scales"] = torch.full(shape, 124, dtype=torch.uint8)
        save_file(tensors, path, metadata={"format": "pt"})
        sizes += sum(tensor.nbytes for tensor in tensors.values())
        names |= {name: path.name for name in tensors}
    index = {"metadata": {"total_size": sizes}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))


def theirs(case, tensors, folder):
    """The logits after each token, by transformers, which saves the model to a folder."""
    import torch
    import transformers

    config = configuration(case, transformers)
    model_name = "Gemma3ForCausalLM" if case.hf == "Gemma3Text" else f"{case.hf}ForCausalLM"
    model = getattr(transformers, model_name)(config).eval().to(torch.float32)
    known = set(model.state_dict())
    state = {name: torch.from_numpy(tensor) for name, tensor in joined(case, tensors, known).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or [name for name in missing if not (case.tied and name == "lm_head.weight")]:
        raise ValueError(f"transformers misses {missing} and does not know {unexpected}")
    if case.tied:
        model.tie_weights()
    # Files of at most 100 kB, so that there are several.
    model.save_pretrained(folder, max_shard_size="100KB")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    if case.mxfp4:
        pack(folder)
    with torch.no_grad():
        return model(torch.tensor([TOKENS]), use_cache=False).logits[0].double().numpy()


def ours(kiln, device, path, tokens, context):
    """The logits after the last token, by kiln-llm."""
    ids = ",".join(map(str, tokens))
    command = [kiln, "logits", str(path), "--tokens", ids, "--json", "--device", device]
    if context is not None:
        command += ["--ctx", str(context)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip())
    return np.array(json.loads(ran.stdout)["logits"], dtype=np.float64)


def compare(case, kiln, device, prefixes, directory):
    """The greatest relative distances of a logit, of the file and of the folder."""
    tensors = weights(case)
    # A folder for each model, as one with more files would leave some of them there.
    file, folder = directory / "model.gguf", Path(tempfile.mkdtemp(dir=directory))
    write(case, tensors, file)
    expected = theirs(case, tensors, folder)
    distances = []
    for path in (file, folder):
        worst = 0.0
        for n in prefixes:
            found = ours(kiln, device, path, TOKENS[:n], case.context)
            far = np.abs(found - expected[n - 1]).max() / np.abs(expected[n - 1]).max()
            worst = max(worst, far) if math.isfinite(far) else math.inf
        distances.append(worst)
    return distances


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kiln", default="target/release/kiln-llm", help="the program")
    parser.add_argument("--device", default="cpu", help="where the program computes: cpu, gpu, cuda or a place")
    parser.add_argument("--whole", action="store_true", help="compare after all tokens alone, and after no fewer")
    parser.add_argument("--only", help="only the models whose names contain this")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write the files there and compare nothing")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if not arguments.only or arguments.only in case.name]
    if not chosen:
        parser.error(f"no model is named {arguments.only!r}")
    if arguments.write:
        arguments.write.mkdir(parents=True, exist_ok=True)
        for case in chosen:
            path = arguments.write / f"{case.name.replace(', ', '-').replace(' ', '-')}.gguf"
            write(case, weights(case), path)
            print(path)
        return 0
    failed = False
    prefixes = PREFIXES[-1:] if arguments.whole else PREFIXES
    print(f"{'model':<24} {'file':>10} {'folder':>10}")
    with tempfile.TemporaryDirectory() as directory:
        for case in chosen:
            try:
                distances = compare(case, arguments.kiln, arguments.device, prefixes, Path(directory))
                limit = MXFP4_LIMIT if case.mxfp4 else LIMIT
                wrong = max(distances) > limit
                columns = " ".join(f"{far:>10.1e}" for far in distances)
                print(f"{case.name:<24} {columns}{'  beyond ' + str(limit) if wrong else ''}", flush=True)
            except Exception as error:  # A model that fails must not hide the others.
                wrong = True
                print(f"{case.name:<24} {type(error).__name__}: {error}", flush=True)
            failed |= wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
