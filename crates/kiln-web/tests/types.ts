// kiln as a page in TypeScript uses it: checked, not run. Lines below `@ts-expect-error` must be rejected.

import { Engine, build, hasVectors, operations, type Explanation, type KilnError } from "../../../target/web/kiln.js";
import { Model, type ModelPlan } from "../../../target/web/models.js";

export async function use(kept: string | undefined): Promise<string> {
  const engine = await Engine.create({ profile: kept, software: true, webgpu: hasVectors ? "required" : false });
  const profile: string = await engine.calibrate({ seconds: 1 });
  const names: string[] = (await operations()).map(({ name }) => name);
  const a = { data: new Float32Array(6), dims: [2, 3] };
  const product: Float32Array = await engine.matmul(a, a, { transpose_b: true });
  const total: number = await engine.sum(product);
  const columns: Float32Array = await engine.sum(a, { axis: 0 });
  const greatest: Uint32Array = await engine.argmax(a, { axis: 1 });
  const [values, places]: [Float32Array, Uint32Array] = await engine.top_k(a, { k: 2 });
  const row: Float32Array = await engine.slice(a, { axis: 0, start: 0, end: 1 });
  const twice: Uint32Array = await engine.concat(greatest, await engine.reshape(greatest, { shape: [2] }), { axis: 0 });
  // @ts-expect-error parts have the type of the whole
  const parts: Float32Array[] = await engine.split(twice, { axis: 0, lengths: [row.length, 2] });
  const order: Uint32Array = await engine.argsort(a, { axis: 1, descending: true });
  const blocks: Uint8Array = await engine.quantize({ data: new Float32Array(256), dims: [1, 256] }, { format: "q4_K" });
  await engine.dequantize({ data: blocks, dims: [1, 256], dtype: "q4_K" }, { format: "q4_K" });
  const halves = await engine.cast({ data: new Uint16Array(6), dims: [2, 3], dtype: "bf16" }, { to: "f16" });
  const { chosen, why }: Explanation = engine.forced("simd128 x1").explain("matmul", [[2, 3], [3, 2]]);

  const batch = engine.batch();
  const x = batch.input(a);
  const [best, at] = batch.top_k(batch.clip(batch.relu(x), { lo: 0, hi: 1 }), { k: 1 });
  await batch.execute([best, at]);
  batch.set(x, columns);
  batch.relu(batch.cast(batch.argsort(x, { axis: 0 }), { to: "f32" }));
  await batch.read(best);

  // @ts-expect-error a parameter that cannot be left out
  await engine.scale(a);
  // @ts-expect-error an operation that there is not
  await engine.frobnicate(a);
  // @ts-expect-error a tensor of a batch is a number
  batch.relu(a);
  // @ts-expect-error no such type
  await engine.cast(halves, { to: "f8" });
  // @ts-expect-error no such format
  await engine.quantize(a, { format: "q9_9" });
  await engine.attention(a, a, a, { causal: true, window: 4, lengths: { data: new Uint32Array([2]), dims: [1] } });
  await engine.convolve2d(a, a, { padding: [1, 1, 0, 2], stride: [1, 2], dilation: [2, 1], groups: 1 });
  await engine.convolve1d(a, a, { padding: [2, 0], dilation: 2 });
  await engine.convolve_transpose2d(a, a, { padding: "same", stride: [2, 2] });
  await engine.convolve_transpose1d(a, a, { stride: 2, output_padding: 1 });
  await engine.resize2d(a, { size: [4, 6], mode: "bilinear", coordinates: "align_corners" });
  // @ts-expect-error an image is resized to a size
  await engine.resize2d(a, { mode: "nearest" });
  await engine.concat(a, a, a, { axis: 0 });
  // @ts-expect-error an axis is taken
  await engine.concat(a, a);
  // @ts-expect-error no such word
  await engine.compare(a, a, { comparison: "almost" });
  // @ts-expect-error two operands are taken
  await engine.add(a);

  try {
    await engine.exp("text" as never);
  } catch (error) {
    const { code } = error as KilnError;
    if (code === "out-of-memory") return `${total} ${parts} ${greatest} ${values} ${places} ${order}`;
    // @ts-expect-error no error has this code
    if (code === "bad-luck") return "";
  }
  // @ts-expect-error no such build
  if (build === "simd256") return "";
  return [profile, chosen, why, build, ...names].join();
}

export async function chat(file: File): Promise<string> {
  const { weights, cache }: ModelPlan = await Model.plan("model.gguf");
  const signal = AbortSignal.timeout(1000);
  const model = await Model.load(file, { device: "gpu", signal, progress: ({ loaded, total, plan }) => console.log(loaded / total, plan?.device) });
  const session = await model.session({ context: 2048 });
  let text = "";
  for await (const { token, text: part, channel } of session.chat([{ role: "user", content: "Hello" }], {
    temperature: 0, seed: 1, topK: 40, signal, progress: ({ computed, total }) => console.log(computed / total),
  })) {
    if (channel === "answer") text += part + token.toFixed();
    // @ts-expect-error no such channel
    if (channel === "final") break;
  }
  const generation = session.generate("Once", { maxTokens: 5 });
  const { done, value } = await generation.next();
  if (done) text += value.finish;
  const tokens: Uint32Array = await session.tokens();
  // @ts-expect-error no such device
  await Model.load(file, { device: "toaster" });
  // @ts-expect-error a message has a role
  session.chat([{ content: "Hello" }]);
  // @ts-expect-error no such option
  session.generate("Once", { temprature: 0 });
  model.close();
  return `${weights} ${cache} ${text} ${tokens.length} ${(await session.explain()).why}`;
}
