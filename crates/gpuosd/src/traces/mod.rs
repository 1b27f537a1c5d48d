//! Recoveries and administrators' commands as OpenTelemetry traces, behind the feature `otel`.
//!
//! - `follow`: makes spans of what the loop tells,
//! - `send`: the thread that has them sent.
//!
//! Without the feature nothing is told, and a collector in gpuos.toml is a trouble.

#[cfg(feature = "otel")]
pub mod follow;
#[cfg(not(feature = "otel"))]
mod none;
#[cfg(feature = "otel")]
pub mod send;

#[cfg(not(feature = "otel"))]
pub use none::Traces;
#[cfg(feature = "otel")]
pub use send::Traces;
