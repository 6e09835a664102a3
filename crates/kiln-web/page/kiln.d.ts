// The types of kiln.js. The types of the operations, element types and formats are generated with the module.

import type { BatchOperations, DType, EngineOperations, QuantFormat } from "./simd128/kiln_web.js";

export type { DType, QuantFormat };

/** Elements, or the bytes of quantised blocks. Elements of f16 and bf16 are Uint16Arrays with their bits. */
export type Elements = Float32Array | Int32Array | Uint32Array | Uint16Array | Int8Array | Uint8Array;

/**
 * A tensor in row-major order; a typed array alone is a vector. `dtype` is needed for what the array does not show: the format of
 * blocks, bf16 (a Uint16Array is f16 otherwise) and bool (a Uint8Array is u8 otherwise). The extents of blocks count elements.
 */
export type TensorLike<T extends Elements = Elements> = T | { data: T; dims?: number[]; dtype?: DType | QuantFormat };

export interface Tensor {
  data: Elements;
  dims: number[];
}

/** The error with which promises of kiln are rejected. */
export interface KilnError extends Error {
  name: "KilnError";
  code:
    | "length" | "shape" | "type" | "arity" | "parameter" | "overflow" | "out-of-memory" | "view" | "index"
    | "foreign-tensor" | "unavailable" | "device-lost" | "limit" | "driver" | "unsupported" | "format" | "other";
}

export interface Place {
  name: string;
  backend: "scalar" | "simd" | "gpu";
  /** Whether it is a GPU that the CPU emulates. */
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
  /** The result of an earlier `calibrate`. A profile of another browser or machine is ignored, and `profileStatus` says why. */
  profile?: string;
  /** Whether to use a software GPU. */
  software?: boolean;
  /** `false` does not use WebGPU; `"required"` rejects the promise without WebGPU. */
  webgpu?: boolean | "required";
}

export interface Verification {
  cases: number;
  elements: number;
  /** The worst error, in the unit of the bound. */
  worst: number;
  bound: string;
  /** A sentence for each case that exceeds its bound. */
  failures: string[];
}

/** Whether this browser has SIMD in WebAssembly. */
export const hasVectors: boolean;
/** The build that this browser loads: with fused multiply-add (relaxed SIMD), with vectors only, or with neither. */
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
  /** Consecutive parts of these lengths, which must fill the dimension. */
  split<T extends Elements>(x: TensorLike<T>, params: { axis: number; lengths: number[] }): Promise<T[]>;
  /** The indices that `sort` gives. */
  argsort(x: TensorLike, params: { axis: number; descending?: boolean }): Promise<Uint32Array>;
  batch(): Batch;
  verify(operation: string, place: string, elements?: number, step?: number): Promise<Verification>;
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
  /** Consecutive parts of these lengths, which must fill the dimension. */
  split(x: BatchTensor, params: { axis: number; lengths: number[] }): BatchTensor[];
  /** The indices that `sort` gives. */
  argsort(x: BatchTensor, params: { axis: number; descending?: boolean }): BatchTensor;
  explain(wanted: BatchTensor[]): Explanation;
  execute(wanted: BatchTensor[]): Promise<void>;
  run(wanted: BatchTensor[]): Promise<Elements[]>;
  read(tensor: BatchTensor): Promise<Elements>;
}
