//! CUresult: the codes that gpuos gives or looks for, by the names of cuda.h without their prefix.

use super::Code;

/// Success.
pub const OK: Code = 0;
/// `INVALID_VALUE`.
pub const INVALID: Code = 1;
/// `OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Code = 2;
/// `INVALID_CONTEXT`.
pub const INVALID_CONTEXT: Code = 201;
/// `NOT_FOUND`.
pub const NOT_FOUND: Code = 500;
/// `NOT_READY`.
pub const NOT_READY: Code = 600;
/// `ILLEGAL_ADDRESS`.
pub const ILLEGAL_ADDRESS: Code = 700;
/// `CONTEXT_IS_DESTROYED`.
pub const CONTEXT_DESTROYED: Code = 709;
/// `NOT_SUPPORTED`.
pub const NOT_SUPPORTED: Code = 801;
/// `STREAM_CAPTURE_UNSUPPORTED`.
pub const CAPTURE_UNSUPPORTED: Code = 900;
/// `UNKNOWN`.
pub const UNKNOWN: Code = 999;
