//! The bytes of a manifest: magic, version, length, body, and a message authentication code over all of them.
//!
//! The body is postcard (its wire format is fixed since version 1.0). The code comes last and has a fixed length, so that it
//! is found without a look at what it covers.

use std::fmt;

use super::check::{Invalid, check};
use super::types::Manifest;

/// Bytes of the code at the end.
pub const MAC_BYTES: usize = 32;

/// The most bytes of a manifest with all around it: it is read into memory at once; own choice.
pub const MAX_MANIFEST: usize = 256 << 20;

const MAGIC: &[u8; 8] = b"gpuosckm";
const VERSION: u16 = 1;
const HEAD: usize = MAGIC.len() + 2 + 8;

/// A manifest in bytes that lack their code.
#[derive(Debug)]
pub struct Unsealed(Vec<u8>);

/// Bytes whose code holds. Nothing else can be parsed.
#[derive(Clone, Copy, Debug)]
pub struct Authentic<'a>(&'a [u8]);

/// Why bytes are no manifest to go by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Longer or shorter than any manifest.
    Length(usize),
    /// The code does not hold: another key, another job or user, or damaged.
    Code,
    /// The code holds, and the bytes are of another format than this release reads.
    Format,
    /// They are of a version that this release does not read.
    Version(u16),
    /// They are a manifest that does not hold together.
    Invalid(Invalid),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Length(length) => {
                write!(f, "it has {length} bytes, which no manifest has")
            }
            Refused::Code => f.write_str(
                "its message authentication code does not hold: it is damaged, of another job or user, or made with another key",
            ),
            Refused::Format => f.write_str("it is not in the format that this release reads"),
            Refused::Version(version) => {
                write!(f, "it has version {version}, this release reads {VERSION}")
            }
            Refused::Invalid(invalid) => invalid.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl Unsealed {
    /// Writes a manifest.
    ///
    /// # Errors
    /// It does not hold together or is too long: what nobody would read back is not written.
    pub fn new(manifest: &Manifest) -> Result<Unsealed, Invalid> {
        check(manifest)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 8]);
        let mut bytes = postcard::to_extend(manifest, bytes)
            .map_err(|error| Invalid(format!("it cannot be written: {error}")))?;
        if bytes.len() > MAX_MANIFEST - MAC_BYTES {
            let length = bytes.len();
            return Err(Invalid(format!(
                "it would have {length} bytes, more than {MAX_MANIFEST}"
            )));
        }
        let body = (bytes.len() - HEAD) as u64;
        bytes[HEAD - 8..HEAD].copy_from_slice(&body.to_le_bytes());
        Ok(Unsealed(bytes))
    }

    /// Appends the code that `mac` computes over all bytes before it.
    pub fn seal(self, mac: impl FnOnce(&[u8]) -> [u8; MAC_BYTES]) -> Vec<u8> {
        let mut bytes = self.0;
        let code = mac(&bytes);
        bytes.extend(code);
        bytes
    }
}

impl<'a> Authentic<'a> {
    /// Has `verify` hold the code against all bytes before it. `verify` compares in constant time.
    ///
    /// # Errors
    /// [`Refused::Length`] or [`Refused::Code`].
    pub fn verify(
        bytes: &'a [u8],
        verify: impl FnOnce(&[u8], &[u8; MAC_BYTES]) -> bool,
    ) -> Result<Authentic<'a>, Refused> {
        let length = Refused::Length(bytes.len());
        if bytes.len() > MAX_MANIFEST {
            return Err(length);
        }
        let (signed, code) = bytes.split_last_chunk().ok_or(length)?;
        if verify(signed, code) {
            Ok(Authentic(signed))
        } else {
            Err(Refused::Code)
        }
    }

    /// Reads the manifest and [`check`]s it.
    ///
    /// # Errors
    /// [`Refused::Format`], [`Refused::Version`] or [`Refused::Invalid`].
    pub fn parse(self) -> Result<Manifest, Refused> {
        let rest = self.0.strip_prefix(MAGIC).ok_or(Refused::Format)?;
        let (version, rest) = rest.split_first_chunk().ok_or(Refused::Format)?;
        let version = u16::from_le_bytes(*version);
        if version != VERSION {
            return Err(Refused::Version(version));
        }
        let (length, body) = rest.split_first_chunk().ok_or(Refused::Format)?;
        if u64::from_le_bytes(*length) != body.len() as u64 {
            return Err(Refused::Format);
        }
        match postcard::take_from_bytes(body) {
            Ok((manifest, [])) => {
                check(&manifest).map_err(Refused::Invalid)?;
                Ok(manifest)
            }
            _ => Err(Refused::Format),
        }
    }
}
