//! The keys of a session, of what both sides said in the handshake.

use super::NONCE;

/// BLAKE3's contexts are to be unique in the world and fixed in the program (section 6.2 of the BLAKE3 specification).
const TO_RESPONDER: &str = "gpuos_link 2026-11 session v1 initiator to responder";
const TO_INITIATOR: &str = "gpuos_link 2026-11 session v1 responder to initiator";

/// A key for each direction, so that no frame can be sent back to its sender.
pub(super) struct Keys {
    pub to_responder: [u8; 32],
    pub to_initiator: [u8; 32],
}

impl Keys {
    /// `transcript` is the digest of all bytes of both credentials with their lengths, in the order of the protocol.
    pub fn derive(initiator: &[u8; NONCE], responder: &[u8; NONCE], transcript: [u8; 32]) -> Keys {
        let mut material = [0; 2 * NONCE + 32];
        material[..NONCE].copy_from_slice(initiator);
        material[NONCE..2 * NONCE].copy_from_slice(responder);
        material[2 * NONCE..].copy_from_slice(&transcript);
        Keys {
            to_responder: blake3::derive_key(TO_RESPONDER, &material),
            to_initiator: blake3::derive_key(TO_INITIATOR, &material),
        }
    }
}
