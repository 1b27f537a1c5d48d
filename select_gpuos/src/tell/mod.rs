//! What people are told: reasons, and the recording of decisions.

pub mod keeper;
pub mod reasons;
pub mod records;
pub mod refused;
pub mod sigbus;
