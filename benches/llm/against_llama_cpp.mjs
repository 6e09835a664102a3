// Compares the probabilities of kiln-llm with those of llama.cpp, for the small models that against_transformers.py writes.
//
//     cargo build --release -p kiln-llm
//     npm install --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64
//     python3 benches/llm/against_transformers.py --write models
//     node benches/llm/against_llama_cpp.mjs models target/release/kiln-llm
//
// Run it where node finds the packages. The table has the greatest distance of the logarithm of a probability over four prefixes of
// 40 tokens. Exit codes: 0 every distance is within its limit, 1 one is not, 2 wrong arguments.

import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";

const [models, kiln] = process.argv.slice(2);
if (kiln === undefined) {
    console.error("usage: against_llama_cpp.mjs MODELS KILN-LLM");
    process.exit(2);
}
const { getLlama, LlamaLogLevel } = await import("node-llama-cpp");
const tokens = Array.from({ length: 40 }, (_, i) => (i * i * 7 + 3 * i + 5) % 320);

// What llama.cpp does not compute: windows of these architectures, the keys of YaRN beside factor and context, and a ramp of YaRN that
// ends between pairs.
const differs = ["mistral", "phi3-window", "qwen2-yarn", "gpt-oss", "gpt-oss-mxfp4"];
// llama.cpp's GELU on CPUs is a table of 16 bits.
const limit = (name) => (name.startsWith("gemma") ? 5e-3 : 1e-4);

function ours(path, prefix, context) {
    const ids = prefix.join(",");
    const options = ["--tokens", ids, "--json", "--device", "cpu", "--ctx", String(context)];
    const { logits } = JSON.parse(execFileSync(kiln, ["logits", path, ...options], { encoding: "utf8" }));
    const greatest = Math.max(...logits);
    const total = logits.reduce((sum, logit) => sum + Math.exp(logit - greatest), 0);
    return logits.map((logit) => logit - greatest - Math.log(total));
}

const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error });
let failed = false;
for (const file of readdirSync(models).filter((file) => file.endsWith(".gguf")).sort()) {
    const name = file.slice(0, -".gguf".length);
    if (differs.includes(name)) {
        console.log(`${name.padEnd(24)} llama.cpp does not compute what its keys say`);
        continue;
    }
    const path = join(models, file);
    // The long factors of LongRoPE are those of contexts beyond the original one.
    const contextSize = name.endsWith("-short") ? 256 : 512;
    const model = await llama.loadModel({ modelPath: path });
    const cache = { experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32" };
    const context = await model.createContext({ contextSize, flashAttention: false, ...cache });
    const evaluated = tokens.map((token) => [token, { generateNext: { probabilities: true } }]);
    const theirs = await context.getSequence().controlledEvaluate(evaluated);
    let far = 0;
    for (const length of [1, 7, 23, 40]) {
        const found = ours(path, tokens.slice(0, length), contextSize);
        const expected = theirs[length - 1].next.probabilities;
        if (expected.size !== found.length) {
            throw new Error(`${name}: ${expected.size} probabilities of ${found.length} tokens`);
        }
        for (const [token, probability] of expected) {
            far = Math.max(far, Math.abs(Math.log(probability) - found[token]));
        }
    }
    // NaN is not within a limit.
    const wrong = !(far <= limit(name));
    failed ||= wrong;
    console.log(`${name.padEnd(24)} ${far.toExponential(1)}${wrong ? `  beyond ${limit(name)}` : ""}`);
    await context.dispose();
    await model.dispose();
}
process.exit(failed ? 1 : 0);
