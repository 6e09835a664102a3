// The types of models.js.

import type { Explanation, KilnError as OperationError } from "./kiln.js";

/** The error with which promises of a model are rejected, unless a signal aborts them. */
export interface KilnError extends Error {
  name: "KilnError";
  code:
    | OperationError["code"]
    /** The file is damaged, or is not a GGUF file. */
    | "file"
    /** The model contradicts itself, or needs something that kiln does not compute. */
    | "model"
    | "context-full" | "token" | "not-a-number" | "template" | "network"
    /** The module or its worker failed. */
    | "module";
}

/** The properties of a model, and the memory that it needs, in bytes. */
export interface ModelPlan {
  architecture: string;
  parameters: number;
  layers: number;
  /** Maximum number of tokens of the model. */
  context: number;
  /** Bytes of the file. */
  bytes: number;
  /** Bytes of all weights. */
  weights: number;
  /** Bytes of the largest tensor, which must fit in one buffer of a GPU. */
  largest: number;
  /** Bytes of the keys and values of a session. */
  cache: number;
  /** The place with the weights. */
  device: string;
  /** Why no GPU is used, if one was requested. */
  problem?: string;
}

export interface Progress {
  loaded: number;
  total: number;
  /** Whether the file comes from the cache. */
  cached: boolean;
  /** Present once the beginning of the file has arrived. */
  plan?: ModelPlan;
}

export interface LoadOptions {
  /** The default is `auto`: the GPU, if there is one that is not software and the weights have 32 MiB or more; otherwise the CPU. */
  device?: "auto" | "gpu" | "cpu";
  /** Whether to use a software GPU. */
  software?: boolean;
  /** The number of tokens of a session, for the memory in the plan. */
  context?: number;
  /** The result of `Engine.calibrate`. */
  profile?: string;
  /** `false` computes in the calling thread, for programs without workers, such as those of Node. */
  worker?: boolean;
  /** Whether to cache a file from a URL in the private file system of the origin. */
  cache?: boolean;
  progress?: (progress: Progress) => void;
  /** Cancels the load, and frees its memory. */
  signal?: AbortSignal;
}

export interface GenerateOptions {
  maxTokens?: number;
  /** 0 chooses the likeliest token. The default is 0.8. */
  temperature?: number;
  /** 0 means all tokens. The default is 40. */
  topK?: number;
  topP?: number;
  minP?: number;
  repeatPenalty?: number;
  /** An integer below 2^32. The default is a random number. */
  seed?: number;
  /** Called after each part of the prompt, before the first token. A short prompt is one part. */
  progress?: (progress: PromptProgress) => void;
  /** Stops the generation, also between two parts of a prompt. */
  signal?: AbortSignal;
}

/** Numbers of tokens of a session. */
export interface PromptProgress {
  /** Those whose keys and values are known, or are computed with the first token. */
  computed: number;
  total: number;
}

export interface Generated {
  token: number;
  /** The text that this token completes. A character whose last bytes are missing comes with a later token. */
  text: string;
}

/** A token of a reply to a conversation. */
export interface Replied extends Generated {
  /**
   * What the text is part of: the answer, which is the `content` of the next message of the assistant, or the thinking or a tool call of
   * gpt-oss. Tokens that only structure a reply have no text.
   */
  channel: "answer" | "thinking" | "tool-call";
}

export interface Finish {
  /** `end`: the model ended the text; `length`: `maxTokens` were generated; `context`: the session is full. */
  finish: "end" | "length" | "context";
  seed: number;
}

export interface Message {
  /** `system`, `user`, `assistant`, or another role of the model's template. */
  role: string;
  content: string;
}

/** Yields tokens as they are generated. The session drops tokens that the caller did not take. */
export type Generation<T extends Generated = Generated> = AsyncGenerator<T, Finish, void>;

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
  chat(messages: Message[], options?: GenerateOptions): Generation<Replied>;
  tokens(): Promise<Uint32Array>;
  truncate(keep: number): Promise<void>;
  explain(): Promise<Explanation>;
  close(): Promise<void>;
}

/** Removes all files that `cache: true` stored. */
export function clearCache(): Promise<void>;
