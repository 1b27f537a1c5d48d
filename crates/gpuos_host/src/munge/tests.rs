use std::path::Path;

use proptest::prelude::*;

use super::*;

#[path = "../../tests/munged/mod.rs"]
mod munged;

use munged::{Daemon, munged};

/// What holds for munge and for its twin: the same cluster, another one.
fn speaks(one: &dyn Credentials, foreign: &dyn Credentials) {
    let payload = b"n1 lives".repeat(40);
    let credential = one.seal(&payload).unwrap();
    assert!(may_be_credential(credential.as_bytes()), "{credential}");
    let opened = one.open(credential.as_bytes()).unwrap();
    assert_eq!(opened.payload, payload);
    assert_eq!(opened.uid, rustix::process::geteuid().as_raw());
    // Once is enough.
    assert_eq!(one.open(credential.as_bytes()), Err(Error::Replayed));
    let empty = one.seal(b"").unwrap();
    assert_eq!(one.open(empty.as_bytes()).unwrap().payload, b"");
    // Another cluster's.
    let other = foreign.seal(b"n1 lives").unwrap();
    assert!(matches!(one.open(other.as_bytes()), Err(Error::Refused(_))));
    // What has been changed on the way.
    let mut changed = one.seal(b"n1 lives").unwrap().into_bytes();
    changed[6] = if changed[6] == b'A' { b'B' } else { b'A' };
    assert!(matches!(one.open(&changed), Err(Error::Refused(_))));
    for nonsense in [&b""[..], b"MUNGE:", b"MUNGE::", b"\0", &[b'A'; 9000]] {
        assert!(matches!(one.open(nonsense), Err(Error::Refused(_))));
    }
    let long = vec![0; MAX_PAYLOAD + 1];
    assert_eq!(one.seal(&long), Err(Error::TooLong(MAX_PAYLOAD + 1)));
    let longest = one.seal(&vec![0xa5; MAX_PAYLOAD]).unwrap();
    assert!(longest.len() <= MAX_CREDENTIAL, "{}", longest.len());
    assert!(one.open(longest.as_bytes()).is_ok());
}

#[test]
fn the_twin_refuses_what_munge_refuses() {
    let uid = rustix::process::geteuid().as_raw();
    let one = Twin::new(7, uid);
    speaks(&one, &Twin::new(8, uid));
    // Each node reads a credential once.
    let credential = one.seal(b"x").unwrap();
    assert!(one.other(uid).open(credential.as_bytes()).is_ok());
    assert!(one.open(credential.as_bytes()).is_ok());
    one.set_stopped(true);
    assert!(one.seal(b"x").unwrap_err().is_absence());
}

#[test]
fn the_real_munge_speaks() {
    let (Some(one), Some(two)) = (munged(1), munged(2)) else {
        eprintln!("SKIPPED: there is no munged on PATH");
        return;
    };
    let open = |daemon: &Daemon| Munge::open(None, Some(&daemon.socket())).unwrap();
    let munge = open(&one);
    speaks(&munge, &open(&two));
    drop(one);
    let away = munge.seal(b"x").unwrap_err();
    assert!(away.is_absence(), "{away}");
    assert!(away.to_string().contains("systemctl status munge"));
}

#[test]
fn a_library_that_is_missing_or_another_is_an_error() {
    for path in ["libnot-there.so.9", "libc.so.6"] {
        let Err(error) = Munge::open(Some(path), None) else {
            panic!("{path} is munge's library");
        };
        assert!(error.is_absence());
        let text = error.to_string();
        assert!(text.contains(path) && text.contains("libmunge2"), "{text}");
    }
}

#[test]
fn the_socket_stands_in_auth_info() {
    assert_eq!(socket_of("socket=/a/b"), Some(Path::new("/a/b")));
    let both = "cred_expire=30,socket=/run/munge/x";
    assert_eq!(socket_of(both), Some(Path::new("/run/munge/x")));
    assert_eq!(socket_of("(null)"), None);
    assert_eq!(socket_of(""), None);
}

proptest! {
    #[test]
    fn nothing_that_is_no_credential_does_harm(bytes: Vec<u8>) {
        let twin = Twin::new(1, 0);
        prop_assert!(twin.open(&bytes).is_err());
        prop_assert!(twin.open(&[b"MUNGE:", &bytes[..], b":"].concat()).is_err());
    }
}
