//! Attention, `softmax(scale Q Kᵀ) V`: of f32 on every target, and of f16 and bf16 on tensor cores.

mod combine;
mod flash;
mod rows;
mod scan;
mod scan_combine;
mod sight;
mod softmax;
mod tile;
mod tiled;
mod warp_group;

pub use combine::{AttentionPlan, FlashCombine};
pub use flash::{FlashAttention, plan};
pub use rows::Attention;
pub use scan::{ScanAttention, ScanPlan};
pub use scan_combine::ScanCombine;
pub use sight::CausalSight;
pub use tile::FlashTile;
pub use tiled::TiledAttention;
pub use warp_group::WarpGroupAttention;
