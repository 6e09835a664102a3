//! kiln for JavaScript: the module that `kiln.js` wraps, and with the feature `models` also `models.js`.
//!
//! Design choices:
//!
//! - Few exports: an operation is run by its name, so that sixty operations take as many bytes as one. `kiln.js` makes a method of
//!   each from `operations`, and the types of these methods come from the same signatures ([`kiln_ir::signatures`]). A new
//!   operation needs no change here.
//! - Functions that wait return a promise; a failure rejects it with an `Error` whose `code` names the variant of
//!   [`kiln::Error`]. No error ends the module.
//! - Operations and models are features: a page that runs no model loads a module without them.
//! - Typed arrays are copied into the memory of the module, and results out of it: the module never borrows memory of JavaScript.
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
