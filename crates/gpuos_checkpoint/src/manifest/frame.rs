//! The bytes of a manifest: magic, version, length, body, and a message authentication code over all of them.
//!
//! The body is postcard (its wire format is fixed since version 1.0). The code comes last and has a fixed length, so that it
//! is found without a look at what it covers.
//!
//! A manifest in which nothing is compressed or encrypted has version 1, which older releases read. In version 2 a key comes before
//! the body, if that is encrypted, and the keys of the segments come behind it, in their order.

use std::fmt;

use super::check::{Invalid, check};
use super::types::{Encryption, KeyId, Kind, Manifest};

/// Bytes of the code at the end.
pub const MAC_BYTES: usize = 32;

/// The most bytes of a manifest with all around it: it is read into memory at once; own choice.
pub const MAX_MANIFEST: usize = 256 << 20;

const MAGIC: &[u8; 8] = b"gpuosckm";
const PLAIN: u16 = 1;
const CODED: u16 = 2;
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
    /// It is encrypted with this key, and that is not here.
    Key(KeyId),
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
                write!(f, "it has version {version}, this release reads {PLAIN} and {CODED}")
            }
            Refused::Key(key) => write!(
                f,
                "it is encrypted with the key {key}, which is not among those of this node: name its file in encrypt-keys of [checkpoint] in gpuos.toml"
            ),
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
        let version = if is_coded(manifest) { CODED } else { PLAIN };
        Unsealed::write(manifest, version, None, |_| ())
    }

    /// Writes a manifest whose body `encrypt` encrypts in its place, as `encryption` says.
    ///
    /// # Errors
    /// As of [`Unsealed::new`].
    pub fn encrypted(
        manifest: &Manifest,
        encryption: &Encryption,
        encrypt: impl FnOnce(&mut [u8]),
    ) -> Result<Unsealed, Invalid> {
        Unsealed::write(manifest, CODED, Some(encryption), encrypt)
    }

    fn write(
        manifest: &Manifest,
        version: u16,
        encryption: Option<&Encryption>,
        encrypt: impl FnOnce(&mut [u8]),
    ) -> Result<Unsealed, Invalid> {
        check(manifest)?;
        let failed = |error| Invalid(format!("it cannot be written: {error}"));
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend([0; 8]);
        if version == CODED {
            bytes = postcard::to_extend(&encryption, bytes).map_err(failed)?;
        }
        let body = bytes.len();
        bytes = postcard::to_extend(manifest, bytes).map_err(failed)?;
        if version == CODED {
            let keys: Vec<_> = manifest.segments.iter().map(|it| it.encryption).collect();
            bytes = postcard::to_extend(&keys, bytes).map_err(failed)?;
        }
        if bytes.len() > MAX_MANIFEST - MAC_BYTES {
            let length = bytes.len();
            return Err(Invalid(format!(
                "it would have {length} bytes, more than {MAX_MANIFEST}"
            )));
        }
        encrypt(&mut bytes[body..]);
        let rest = (bytes.len() - HEAD) as u64;
        bytes[HEAD - 8..HEAD].copy_from_slice(&rest.to_le_bytes());
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

    /// Reads a manifest that is not encrypted, and [`check`]s it.
    ///
    /// # Errors
    /// [`Refused::Format`], [`Refused::Version`], [`Refused::Key`] or [`Refused::Invalid`].
    pub fn parse(self) -> Result<Manifest, Refused> {
        self.parse_with(|_, _| false)
    }

    /// Reads the manifest and [`check`]s it. `decrypt` decrypts a body in its place; `false`: it does not have the key.
    ///
    /// # Errors
    /// As of [`Authentic::parse`].
    pub fn parse_with(
        self,
        decrypt: impl FnOnce(&Encryption, &mut [u8]) -> bool,
    ) -> Result<Manifest, Refused> {
        let rest = self.0.strip_prefix(MAGIC).ok_or(Refused::Format)?;
        let (version, rest) = rest.split_first_chunk().ok_or(Refused::Format)?;
        let version = u16::from_le_bytes(*version);
        if !matches!(version, PLAIN | CODED) {
            return Err(Refused::Version(version));
        }
        let (length, body) = rest.split_first_chunk().ok_or(Refused::Format)?;
        if u64::from_le_bytes(*length) != body.len() as u64 {
            return Err(Refused::Format);
        }
        let manifest = match version {
            PLAIN => match postcard::take_from_bytes(body) {
                Ok((manifest, [])) if !is_coded(&manifest) => manifest,
                _ => return Err(Refused::Format),
            },
            _ => match postcard::take_from_bytes(body).map_err(|_| Refused::Format)? {
                (None, body) => coded(body)?,
                (Some(encryption), body) => decrypted(&encryption, body, decrypt)?,
            },
        };
        check(&manifest).map_err(Refused::Invalid)?;
        Ok(manifest)
    }
}

/// Whether a release that knows version 1 alone could not read what it names.
fn is_coded(manifest: &Manifest) -> bool {
    let mut extents = manifest.files.iter().flat_map(|file| &file.extents);
    manifest.segments.iter().any(|it| it.encryption.is_some())
        || extents.any(|extent| matches!(extent.kind, Kind::Coded(_)))
}

fn coded(body: &[u8]) -> Result<Manifest, Refused> {
    let read = postcard::take_from_bytes::<Manifest>(body);
    let (mut manifest, keys) = read.map_err(|_| Refused::Format)?;
    let Ok((keys, [])) = postcard::take_from_bytes::<Vec<Option<Encryption>>>(keys) else {
        return Err(Refused::Format);
    };
    if keys.len() != manifest.segments.len() {
        return Err(Refused::Format);
    }
    for (segment, encryption) in manifest.segments.iter_mut().zip(keys) {
        segment.encryption = encryption;
    }
    Ok(manifest)
}

fn decrypted(
    encryption: &Encryption,
    body: &[u8],
    decrypt: impl FnOnce(&Encryption, &mut [u8]) -> bool,
) -> Result<Manifest, Refused> {
    if encryption.cipher != Encryption::AES_256_CTR {
        let why = format!(
            "it is encrypted in a way of number {}, and this release knows 1, AES-256-CTR, alone",
            encryption.cipher
        );
        return Err(Refused::Invalid(Invalid(why)));
    }
    let mut body = body.to_vec();
    match decrypt(encryption, &mut body) {
        true => coded(&body),
        false => Err(Refused::Key(encryption.key)),
    }
}
