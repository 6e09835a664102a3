//! Architectures: the computations of models, described by a table with one row for each architecture.
//!
//! Decoders continue texts; encoders ([`encoder`]) compute embeddings of texts.
//!
//! Most decoders are one block with options, which [`decoder`] records. Biases, fused projections, norms of query and key heads and the
//! frequency factors of rotations are used if a file has such tensors, and scales, caps and windows if it has such keys. A row of the
//! table has the properties that neither tensors nor keys show.

mod adapters;
mod cached;
mod candidates;
mod decoder;
mod drawing;
pub(crate) mod encoder;
mod feed_forward;
mod logits;
mod modules;
mod outcome;
mod products;
mod projection;
mod rope;
mod rows;
mod split;
mod table;
mod weights;

pub(crate) use adapters::{ActiveAdapters, AdapterSet};
pub(crate) use cached::caches;
pub(crate) use candidates::Ranked;
pub(crate) use decoder::{Forward, Recorded, Scoring, Step};
pub(crate) use modules::MODULES;
pub(crate) use outcome::ArrivingToken;
pub(crate) use rope::Rotation;
pub(crate) use rows::{ArrivingRows, Copying, Layout, Row, Rows};
pub use table::ModelKind;
use table::encoder_named;
pub(crate) use table::{Architecture, Caps, Gate, HeadNorms, Mixture, Norms, WindowRope, Windows, encoder_names};
#[cfg(not(target_arch = "wasm32"))]
pub use weights::TokenWork;
pub(crate) use weights::Weights;
