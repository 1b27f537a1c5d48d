//! Group shapes of training jobs (`--gpuos-shape=tp8:pp4:dp16`): how ranks fall into groups, which
//! groups belong close together, and the order of ranks that keeps them there.
//!
//! A tensor-parallel group exchanges in every layer and belongs inside NVLink; context-parallel
//! groups beside it; the stages of a pipeline inside one leaf switch; data-parallel replicas may be
//! far apart. Expert-parallel groups are parts of the context- and data-parallel ones, as in
//! Megatron-LM, so they do not multiply the number of ranks.

mod ranks;
mod shape;

pub use ranks::{RankFile, Spans, gpu_order, spread};
pub use shape::{GroupKind, GroupShape, SHAPE_FORM};

#[cfg(test)]
mod tests;
