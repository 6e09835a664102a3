//! kiln for JavaScript: what `kiln.js` beside the page wraps, and with the feature `models` what `models.js` does.
//!
//! Design choices:
//!
//! - Few exports: an operation is run by its name, so that sixty of them cost the bytes of one. `kiln.js` makes a method of
//!   each from `operations`, and the types of these methods come from the same signatures ([`kiln_ir::signatures`]). A new
//!   operation needs nothing here.
//! - Whatever can wait returns a promise; whatever fails rejects it with an `Error` whose `code` names the variant of
//!   [`kiln::Error`]. Nothing ends the module.
//! - Operations and models are features: a page that runs no model loads a module without them.
//! - Typed arrays are copied into the memory of the module, and results out of it: none of JavaScript's is ever borrowed.
#![cfg(target_arch = "wasm32")]
#![deny(unsafe_code)]
// wasm-bindgen exports items to JavaScript regardless of their Rust visibility.
#![allow(unreachable_pub)]

#[cfg(feature = "operations")]
mod batch;
#[cfg(feature = "operations")]
mod engine;
mod error;
mod js;
#[cfg(feature = "models")]
mod models;
#[cfg(feature = "operations")]
mod operations;
#[cfg(feature = "operations")]
mod typescript;
#[cfg(feature = "operations")]
mod value;
#[cfg(feature = "verify")]
mod verify;
