// The types of models.js.

import type { Explanation, KilnError as OperationError } from "./kiln.js";

/** What every promise of a model is rejected with, but for what a signal aborts. */
export interface KilnError extends Error {
  name: "KilnError";
  code:
    | OperationError["code"]
    /** The file is damaged, or is none of this kind. */
    | "file"
    /** The model contradicts itself, or asks for what is not computed. */
    | "model"
    | "context-full" | "token" | "not-a-number" | "template" | "network"
    /** The module or its worker failed. */
    | "module";
}

/** What a model is, and the memory that it takes, in bytes. */
export interface ModelPlan {
  architecture: string;
  parameters: number;
  layers: number;
  /** The tokens that it was made for. */
  context: number;
  /** Those of the file. */
  bytes: number;
  /** Those of all weights. */
  weights: number;
  /** Those of the largest tensor, which a GPU must take in one buffer. */
  largest: number;
  /** Those of the keys and values of a session. */
  cache: number;
  /** The place that has the weights. */
  device: string;
  /** Why there is no GPU, where one was looked for. */
  problem?: string;
}

export interface Progress {
  loaded: number;
  total: number;
  /** Whether the file was kept from an earlier visit. */
  cached: boolean;
  /** Once the beginning of the file has come. */
  plan?: ModelPlan;
}

export interface LoadOptions {
  /** `auto`, which is meant without it: the GPU where there is one. */
  device?: "auto" | "gpu" | "cpu";
  /** Whether a GPU in software counts. */
  software?: boolean;
  /** The tokens of the sessions that the plan counts memory for. */
  context?: number;
  /** What `Engine.calibrate` gave. */
  profile?: string;
  /** `false` computes in this thread, which is for programs without workers, such as those of Node. */
  worker?: boolean;
  /** Whether a file from a URL is kept by the browser (in its private file system), and found there again. */
  cache?: boolean;
  progress?: (progress: Progress) => void;
  /** Ends the load, and frees its memory. */
  signal?: AbortSignal;
}

export interface GenerateOptions {
  maxTokens?: number;
  /** 0 takes the likeliest token. 0.8 without it. */
  temperature?: number;
  /** 0 takes all. 40 without it. */
  topK?: number;
  topP?: number;
  minP?: number;
  repeatPenalty?: number;
  /** A whole number below 2^32; another one each time without it. */
  seed?: number;
  signal?: AbortSignal;
}

export interface Generated {
  token: number;
  /** The text that is complete with it: characters whose last bytes are missing come with a later token. */
  text: string;
}

export interface Finish {
  /** The model ended the text, there are `maxTokens`, or the context is full. */
  finish: "end" | "length" | "context";
  seed: number;
}

export interface Message {
  /** `system`, `user` or `assistant`, as the template of the model has it. */
  role: string;
  content: string;
}

/** Tokens as they come. What was not taken when it ends is not kept by the session. */
export type Generation = AsyncGenerator<Generated, Finish, void>;

export class Model {
  static load(source: string | URL | Blob | ArrayBuffer | ArrayBufferView<ArrayBuffer>, options?: LoadOptions): Promise<Model>;
  static plan(source: string | URL | Blob | ArrayBuffer | ArrayBufferView<ArrayBuffer>, options?: Omit<LoadOptions, "progress" | "cache">): Promise<ModelPlan>;
  readonly plan: ModelPlan;
  session(options?: { context?: number }): Promise<Session>;
  close(): void;
  destroyDevice(): Promise<void>;
}

export class Session {
  readonly context: number;
  generate(prompt?: string, options?: GenerateOptions): Generation;
  chat(messages: Message[], options?: GenerateOptions): Generation;
  tokens(): Promise<Uint32Array>;
  truncate(keep: number): Promise<void>;
  explain(): Promise<Explanation>;
  close(): Promise<void>;
}

/** Removes the files that `cache: true` has kept. */
export function clearCache(): Promise<void>;
