//! AES-256 in counter mode, for extents and manifests. It says nothing about whether bytes were changed: everything that is decrypted
//! was held against a keyed digest before, over the bytes as they are kept.
//!
//! Counter mode must never use a counter twice under one key. Each segment and each manifest has a key of its own, of which
//! 16 random bytes are a part, and in a segment each extent has a number of its own in the upper half of the counter. The lower half
//! counts blocks, of which an extent has 2^22 at most.
//! Source: NIST SP 800-38A, section 6.5 and appendix B.2.

use std::io;

use aes::Aes256;
use ctr::Ctr64BE;
use ctr::cipher::{KeyIvInit, StreamCipher};
use rustix::rand::{GetRandomFlags, getrandom};

/// The key of one segment or one manifest, ready to be used.
pub(crate) struct Cipher {
    key: [u8; 32],
}

impl Cipher {
    /// Of a key that nothing else has.
    pub(crate) fn new(key: [u8; 32]) -> Cipher {
        Cipher { key }
    }

    /// Encrypts the bytes of number `nth`, or decrypts them: both are the same.
    pub(crate) fn apply(&self, nth: u64, bytes: &mut [u8]) {
        let mut first = [0; 16];
        first[..8].copy_from_slice(&nth.to_be_bytes());
        Ctr64BE::<Aes256>::new(&self.key.into(), &first.into()).apply_keystream(bytes);
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        self.key.fill(0);
        // Otherwise a write that nobody reads may be left out.
        std::hint::black_box(&mut self.key);
    }
}

/// Sixteen bytes at random.
///
/// # Errors
/// The kernel gives none.
pub(crate) fn salt() -> io::Result<[u8; 16]> {
    let mut salt = [0; 16];
    // The kernel gives so few whole or not at all.
    match getrandom(&mut salt, GetRandomFlags::empty())? {
        16 => Ok(salt),
        _ => Err(io::Error::other("the kernel gave too few random bytes")),
    }
}

#[cfg(test)]
mod tests {
    use aes::Aes256;
    use aes::cipher::{BlockCipherEncrypt, KeyInit};

    use super::Cipher;

    /// FIPS 197, appendix C.3, has what AES-256 makes of a block; the stream is that of number and counter.
    #[test]
    fn blocks_are_those_of_aes_over_number_and_counter() {
        let key: [u8; 32] = std::array::from_fn(|at| at as u8);
        let aes = Aes256::new(&key.into());
        let block = |nth: u64, counter: u64| {
            let mut block = [0; 16];
            block[..8].copy_from_slice(&nth.to_be_bytes());
            block[8..].copy_from_slice(&counter.to_be_bytes());
            let mut block = block.into();
            aes.encrypt_block(&mut block);
            block
        };
        let nth = 0x0011_2233_4455_6677;
        let expected = [
            0x8e, 0xa2, 0xb7, 0xca, 0x51, 0x67, 0x45, 0xbf, 0xea, 0xfc, 0x49, 0x90, 0x4b, 0x49,
            0x60, 0x89,
        ];
        assert_eq!(block(nth, 0x8899_aabb_ccdd_eeff)[..], expected);
        let mut bytes = [0; 48];
        Cipher::new(key).apply(nth, &mut bytes);
        for (counter, got) in (0u64..).zip(bytes.chunks(16)) {
            assert_eq!(block(nth, counter)[..], *got, "block {counter}");
        }
    }
}
