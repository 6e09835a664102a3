// The types of kiln.js. Those of the operations come with the module, from the tables that define them.

import type { EngineOperations, BatchOperations } from "./simd128/kiln_web.js";

/** A quantised block format, by the name that GGUF tools use. */
export type QuantFormat =
  | "q8_0" | "q4_0" | "q4_1" | "q5_0" | "q5_1" | "iq4_nl" | "mxfp4" | "q2_K" | "q3_K" | "q4_K" | "q5_K" | "q6_K" | "iq4_xs";

/** An element type. */
export type DType = "f32" | "f16" | "bf16" | "i32" | "u32" | "i8" | "u8" | "bool";

/** Elements, or bytes of blocks; f16 and bf16 are their bits. */
export type Elements = Float32Array | Int32Array | Uint32Array | Uint16Array | Int8Array | Uint8Array;

/**
 * A tensor in row-major order; a typed array alone is a vector. What the array does not say is named: blocks have a format, a
 * Uint16Array is f16 unless it is named bf16, a Uint8Array u8 unless it is named bool. Extents of blocks count elements.
 */
export type TensorLike = Elements | { data: Elements; dims?: number[]; dtype?: DType | QuantFormat };

export interface Tensor {
  data: Elements;
  dims: number[];
}

/** What every promise of kiln is rejected with. */
export interface KilnError extends Error {
  name: "KilnError";
  code:
    | "length" | "shape" | "type" | "arity" | "parameter" | "overflow" | "out-of-memory" | "view" | "index"
    | "foreign-tensor" | "unavailable" | "device-lost" | "limit" | "driver" | "unsupported" | "format" | "other";
}

export interface Place {
  name: string;
  backend: "scalar" | "simd" | "gpu";
  /** Whether it is a GPU that the processor plays. */
  software: boolean;
}

export interface Explanation {
  question: string;
  chosen: string;
  unsure: boolean;
  why: string;
  /** Fastest first. */
  predictions: { place: string; seconds: number }[];
}

export interface EngineOptions {
  /** What `calibrate` gave earlier. One that does not fit this browser is ignored, and `profileStatus` says why. */
  profile?: string;
  /** Whether a GPU in software is a place. */
  software?: boolean;
  /** `false` leaves WebGPU alone; `"required"` rejects where there is none. */
  webgpu?: boolean | "required";
}

export interface Verification {
  cases: number;
  elements: number;
  /** In the unit of the bound. */
  worst: number;
  bound: string;
  /** A sentence for each case out of its bound. */
  failures: string[];
}

/** Whether this browser has SIMD in WebAssembly. */
export const hasVectors: boolean;
/** The build that this browser takes: with fused multiply-add (relaxed SIMD), with vectors alone, or with neither. */
export const build: "relaxed-simd" | "simd128" | "scalar";
export function operations(): Promise<{ name: string; operands: number; beside: string[]; params: string; reduces: boolean }[]>;
export function verifiable(): Promise<string[]>;

export interface Engine extends EngineOperations {}
export class Engine {
  static create(options?: EngineOptions): Promise<Engine>;
  readonly places: Place[];
  readonly gpu: Place | undefined;
  readonly problem: string | undefined;
  readonly profileStatus: string;
  calibrate(options?: { seconds?: number }): Promise<string>;
  forced(place: string): Engine;
  explain(operation: string, inputs: (number[] | { dims: number[]; dtype?: DType | QuantFormat })[], params?: object): Explanation;
  run(operation: string, inputs: TensorLike[], params?: object): Promise<Tensor[]>;
  batch(): Batch;
  verify(operation: string, place: string, elements?: number): Promise<Verification>;
  destroyDevice(): Promise<void>;
}

/** A tensor of one batch. */
export type BatchTensor = number;

export interface Batch extends BatchOperations {}
export class Batch {
  input(tensor: TensorLike): BatchTensor;
  set(tensor: BatchTensor, data: Float32Array): void;
  record(operation: string, inputs: BatchTensor[], params?: object): BatchTensor[];
  dims(tensor: BatchTensor): number[];
  explain(wanted: BatchTensor[]): Explanation;
  execute(wanted: BatchTensor[]): Promise<void>;
  run(wanted: BatchTensor[]): Promise<Elements[]>;
  read(tensor: BatchTensor): Promise<Elements>;
}
