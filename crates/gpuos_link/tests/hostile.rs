//! Messages of the handshake that somebody between the nodes has changed or put elsewhere: nobody gets a session by them.

use std::sync::Arc;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_link::session::{Credentials, Fault, Handshake, MAX_HANDSHAKE, Settings};
use proptest::prelude::*;

use crate::support::{Fake, ROOT, Side, place, shake};

/// Neither side has a session; the responder may have one only when nothing but its last message was touched.
fn refused(caller: &Side, called: &Side, number: usize, what: &str) {
    assert!(
        !caller.is_done(),
        "message {number}, {what}: the caller is content"
    );
    assert!(
        number == 3 || !called.is_done(),
        "message {number}, {what}: the called one is content"
    );
}

#[test]
fn truncated_messages_lead_nowhere() {
    let (_, _, sent) = shake([1, 2], |_, bytes| bytes);
    for (number, message) in sent.iter().enumerate() {
        for length in 0..message.len() {
            let cut = |at, mut bytes: Vec<u8>| {
                if at == number {
                    bytes.truncate(length);
                }
                bytes
            };
            let (caller, called) = until(number, cut);
            refused(&caller, &called, number, "cut");
        }
    }
}

/// A handshake as [`shake`], which ends behind message `last` when nothing is answered any more.
fn until(last: usize, mut meddle: impl FnMut(usize, Vec<u8>) -> Vec<u8>) -> (Side, Side) {
    let (mut caller, mut message) = Side::initiator(1, Settings::default());
    let mut called = Side::responder(place(1), 2, Settings::default());
    for number in 0..=last.max(3) {
        let heard = meddle(number, message);
        let hears = if number % 2 == 0 {
            &mut called
        } else {
            &mut caller
        };
        message = hears.hear(&heard);
        if message.is_empty() {
            break;
        }
    }
    (caller, called)
}

#[test]
fn a_flipped_bit_anywhere_is_never_accepted() {
    let (_, _, sent) = shake([1, 2], |_, bytes| bytes);
    for (number, message) in sent.iter().enumerate() {
        for bit in 0..8 * message.len() {
            let flip = |at, mut bytes: Vec<u8>| {
                if at == number {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                bytes
            };
            let (caller, called) = until(number, flip);
            refused(&caller, &called, number, "flipped");
        }
    }
}

/// Bytes that the credential service does not look at are still part of what the keys are made of.
#[test]
fn the_keys_depend_on_every_byte_of_the_credentials() {
    let loose = Fake { slack: 3, ..ROOT };
    let settings = Settings::default();
    for (changed, fault) in [
        (None, None),
        (Some(0), Some(Fault::Mac)),
        (Some(1), Some(Fault::Mac)),
    ] {
        let started = Handshake::initiate(place(0), NodeIndex(1), [1; 32], settings, &loose);
        let (handshake, mut hello) = started.unwrap();
        let mut caller = Side::new(handshake, loose.clone());
        let responder = Handshake::respond(Arc::new(place(1)), [2; 32], settings);
        let mut called = Side::new(responder, loose.clone());
        let touch = |bytes: &mut Vec<u8>, number| {
            if let Some(last) = bytes.last_mut().filter(|_| changed == Some(number)) {
                *last ^= 1;
            }
        };
        touch(&mut hello, 0);
        let mut answer = called.hear(&hello);
        touch(&mut answer, 1);
        let confirm = caller.hear(&answer);
        called.hear(&confirm);
        assert_eq!(called.fault, fault);
    }
}

#[test]
fn repeated_messages_end_it() {
    for number in 0..4 {
        let twice = |at, bytes: Vec<u8>| match at == number {
            true => bytes.repeat(2),
            false => bytes,
        };
        let (caller, called) = until(number, twice);
        let hears = if number % 2 == 0 { called } else { caller };
        assert!(hears.fault.is_some(), "message {number}");
    }
}

#[test]
fn reflected_messages_end_it() {
    let (mut caller, hello) = Side::initiator(1, Settings::default());
    assert!(caller.hear(&hello).is_empty());
    assert_eq!(caller.fault, Some(Fault::Role));
    let mut called = Side::responder(place(1), 2, Settings::default());
    let answer = called.hear(&hello);
    let (mut caller, _) = Side::initiator(1, Settings::default());
    let confirm = caller.hear(&answer);
    assert!(caller.hear(&confirm).is_empty());
    assert_eq!(caller.fault, Some(Fault::Mac));
    // The answer comes back to whom made it, as a hello.
    let mut called = Side::responder(place(0), 2, Settings::default());
    assert!(called.hear(&answer).is_empty());
    assert_eq!(called.fault, Some(Fault::Role));
    assert!(
        Side::responder(place(1), 2, Settings::default())
            .hear(&answer)
            .is_empty()
    );
}

#[test]
fn messages_in_another_order_end_it() {
    let (_, _, sent) = shake([1, 2], |_, bytes| bytes);
    for (first, message) in sent.iter().enumerate().skip(1) {
        let mut called = Side::responder(place(1), 2, Settings::default());
        called.hear(message);
        assert!(called.fault.is_some(), "message {first} came first");
    }
    for first in [2, 3] {
        let (mut caller, _) = Side::initiator(1, Settings::default());
        caller.hear(&sent[first]);
        assert!(
            caller.fault.is_some(),
            "message {first} came for the answer"
        );
    }
    // Both confirmations, and the answer behind.
    let (mut caller, _) = Side::initiator(1, Settings::default());
    caller.hear(&[&sent[3][..], &sent[1]].concat());
    assert!(caller.fault.is_some());
}

#[test]
fn messages_of_another_session_are_of_no_use() {
    let (_, _, old) = shake([1, 2], |_, bytes| bytes);
    let (mut caller, _) = Side::initiator(5, Settings::default());
    assert!(caller.hear(&old[1]).is_empty());
    assert_eq!(caller.fault, Some(Fault::Nonce));
    // Where the credential service would read the hello again, there is no key for the confirmation.
    let mut called = Side::responder(place(1), 6, Settings::default());
    assert!(!called.hear(&old[0]).is_empty());
    assert!(called.hear(&old[2]).is_empty());
    assert_eq!(called.fault, Some(Fault::Mac));
    for (number, replayed) in old.iter().enumerate().skip(2) {
        let replay = |at, bytes| {
            if at == number {
                replayed.clone()
            } else {
                bytes
            }
        };
        let (mut caller, mut message) = Side::initiator(5, Settings::default());
        let mut called = Side::responder(place(1), 6, Settings::default());
        for at in 0..4 {
            let heard = replay(at, message);
            let hears = if at % 2 == 0 {
                &mut called
            } else {
                &mut caller
            };
            message = hears.hear(&heard);
        }
        refused(&caller, &called, number, "replayed");
    }
}

#[test]
fn lengths_beyond_the_bound_cost_nothing() {
    for length in [0, MAX_HANDSHAKE as u32 + 1, 1 << 24, u32::MAX] {
        let mut called = Side::responder(place(1), 2, Settings::default());
        called.hear(&length.to_le_bytes());
        let told = called.fault.is_some_and(|fault| {
            matches!(fault, Fault::Length { length: told, .. } if told == u64::from(length))
        });
        assert!(told && called.handshake.held() <= 16);
    }
    // The longest takes what has come, twice at most.
    let mut called = Side::responder(place(1), 2, Settings::default());
    called.hear(&(MAX_HANDSHAKE as u32).to_le_bytes());
    called.hear(&[b'M'; 100]);
    assert!(called.fault.is_none() && called.handshake.held() <= 208);
    // Before it has confirmed, the other side may send no body.
    let (mut caller, hello) = Side::initiator(1, Settings::default());
    let mut called = Side::responder(place(1), 2, Settings::default());
    let answer = called.hear(&hello);
    caller.hear(&answer);
    called.hear(&[1, 0, 0, 0, 0]);
    assert_eq!(
        called.fault,
        Some(Fault::Length {
            length: 1,
            limit: 0
        })
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_lead_to_no_session(parts: Vec<Vec<u8>>, framed: bool) {
        let (caller, hello) = Side::initiator(1, Settings::default());
        let fresh = Side::responder(place(1), 2, Settings::default());
        let mut halfway = Side::responder(place(1), 2, Settings::default());
        halfway.hear(&hello);
        for mut side in [caller, fresh, halfway] {
            let mut heard = 0;
            for part in &parts {
                let mut bytes = part.clone();
                if framed {
                    bytes.splice(0..0, (part.len() as u32).to_le_bytes());
                }
                heard += bytes.len();
                prop_assert!(side.hear(&bytes).is_empty());
                prop_assert!(side.handshake.held() <= 2 * heard + 16);
            }
            prop_assert!(!side.is_done());
        }
    }

    /// Even root of a node can at most say something wrong.
    #[test]
    fn any_payload_of_root_does_no_harm(rest: Vec<u8>, version in 0u16..3, keep in 0usize..100) {
        let (_, hello) = Side::initiator(1, Settings::default());
        let mut payload = ROOT.open(&hello[4..]).unwrap().payload;
        payload.truncate(keep);
        if let Some(at) = payload.get_mut(11..13) {
            at.copy_from_slice(&version.to_le_bytes());
        }
        payload.extend(rest);
        let credential = ROOT.seal(&payload).unwrap();
        let bytes = [&(credential.len() as u32).to_le_bytes()[..], &credential].concat();
        let (mut caller, _) = Side::initiator(1, Settings::default());
        prop_assert!(caller.hear(&bytes).is_empty());
        prop_assert!(caller.fault.is_some());
        let mut called = Side::responder(place(1), 2, Settings::default());
        called.hear(&bytes);
        prop_assert!(!called.is_done());
    }
}
