//! The matrix product, `C = alpha A B + beta C`: of f32 on every target, and on tensor cores.

mod epilogue;
mod few_rows;
mod multistage;
mod order;
mod planes;
mod simt;
mod split;
mod textbook;
mod warp;
mod warp_group;

pub use epilogue::Epilogue;
pub(super) use epilogue::always;
pub use few_rows::FewRowsGemm;
pub use multistage::{MultistageGemm, MultistageTile};
pub(super) use order::Order;
pub use planes::Tf32Planes;
pub use simt::{Gemm, Tile};
pub use split::SplitSum;
pub use textbook::{NaiveGemm, TiledGemm};
pub use warp::{WarpGemm, WarpTile};
pub use warp_group::{WarpGroupGemm, WarpGroupTile};
