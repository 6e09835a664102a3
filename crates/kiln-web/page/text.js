// Formats errors and times for all parts of the page.

/** The text of an error for a visitor. */
export const sentence = (error) => error?.message ?? String(error);

/** A time in milliseconds, with its unit. */
export const duration = (ms) => {
  if (ms === undefined) return "–";
  if (ms >= 1000) return `${(ms / 1000).toPrecision(3)} s`;
  return ms >= 1 ? `${ms.toPrecision(3)} ms` : `${(ms * 1000).toPrecision(3)} µs`;
};
