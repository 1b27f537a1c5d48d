//! Who gets a session, and who does not.

use std::sync::Arc;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_core::job::JobId;
use gpuos_link::session::{
    Credentials, Fault, Handshake, Kind, MAX_HANDSHAKE, Opened, Place, Refusal, Settings,
};

use crate::support::{Fake, ROOT, Side, place, sessions, shake};

#[test]
fn both_ends_know_each_other() {
    let (caller, called, sent) = shake([1, 2], |_, bytes| bytes);
    assert!(caller.is_done() && called.is_done());
    let (mut one, mut two) = (caller.session.unwrap(), called.session.unwrap());
    assert_eq!((one.peer.node, two.peer.node), (NodeIndex(1), NodeIndex(0)));
    assert_eq!((one.peer.job, two.peer.job), (7.into(), 7.into()));
    for (from, to) in [
        (&mut one.sealer, &mut two.opener),
        (&mut two.sealer, &mut one.opener),
    ] {
        let bytes = from.seal(Kind::Data, b"piece").unwrap().with(b"piece");
        let (used, frame) = to.feed(&bytes).unwrap();
        assert_eq!(
            (used, frame.unwrap().body),
            (bytes.len(), b"piece".to_vec())
        );
    }
    assert_eq!(sent.len(), 4);
    // A handshake that is over takes nothing more.
    let (mut caller, _, _) = shake([1, 2], |_, bytes| bytes);
    let again = caller.handshake.feed(b"x", &ROOT);
    assert_eq!(again.unwrap_err(), Fault::Over);
}

#[test]
fn bytes_may_come_one_by_one() {
    let (mut caller, hello) = Side::initiator(1, Settings::default());
    let mut called = Side::responder(place(1), 2, Settings::default());
    let single = |side: &mut Side, bytes: &[u8]| {
        let heard: Vec<Vec<u8>> = bytes.iter().map(|byte| side.hear(&[*byte])).collect();
        heard.concat()
    };
    assert!(!called.handshake.is_known());
    let answer = single(&mut called, &hello);
    assert!(called.handshake.is_known() && !called.is_done());
    let confirm = single(&mut caller, &answer);
    let confirmed = single(&mut called, &confirm);
    assert!(single(&mut caller, &confirmed).is_empty());
    assert!(caller.is_done() && called.is_done());
}

/// What the responder at node 1 says to a hello of node 0 with this payload.
fn told(payload: &[u8], credentials: &Fake) -> Option<Fault> {
    let credential = credentials.seal(payload).unwrap();
    let mut hello = (credential.len() as u32).to_le_bytes().to_vec();
    hello.extend(credential);
    let mut called = Side::responder(place(1), 2, Settings::default());
    let answer = called.hear(&hello);
    assert_eq!(answer.is_empty(), called.fault.is_some());
    called.fault
}

/// The payload of a good hello.
fn payload() -> Vec<u8> {
    let (_, hello) = Side::initiator(1, Settings::default());
    ROOT.open(&hello[4..]).unwrap().payload
}

#[test]
fn only_root_of_the_cluster_is_heard() {
    let good = payload();
    assert_eq!(told(&good, &ROOT), None);
    let user = Fake { uid: 1000, ..ROOT };
    assert_eq!(told(&good, &user), Some(Fault::User(1000)));
    let foreign = Fake { cluster: 2, ..ROOT };
    assert!(matches!(told(&good, &foreign), Some(Fault::Open(_))));
    // In a lab the daemon's own user is as good as root, and no other is.
    for (own, fault) in [(Some(1000), None), (Some(1001), Some(Fault::User(1000)))] {
        let settings = Settings {
            own_uid: own,
            ..Settings::default()
        };
        let started = Handshake::initiate(place(0), NodeIndex(1), [1; 32], settings, &user);
        let mut called = Side::responder(place(1), 2, settings);
        called.hear(&started.unwrap().1);
        assert_eq!(called.fault, fault);
    }
}

#[test]
fn another_version_and_another_purpose_are_told() {
    let good = payload();
    let mut newer = good.clone();
    newer[11] += 1;
    assert_eq!(told(&newer, &ROOT), Some(Fault::Version(4)));
    // What follows the version of another release is not looked at.
    assert_eq!(told(&newer[..13], &ROOT), Some(Fault::Version(4)));
    assert_eq!(told(b"n1 lives", &ROOT), Some(Fault::Payload));
    for length in 0..good.len() {
        let fault = told(&good[..length], &ROOT);
        assert!(
            fault.is_some(),
            "{length} bytes of a hello are taken for one"
        );
    }
    let mut longer = good.clone();
    longer.extend(b"/..");
    assert_eq!(told(&longer, &ROOT), Some(Fault::Payload));
}

#[test]
fn another_job_and_other_nodes_are_told() {
    let hello = |place: Place, peer| {
        let started =
            Handshake::initiate(place, NodeIndex(peer), [1; 32], Settings::default(), &ROOT);
        started.map(|(_, hello)| hello)
    };
    let ends = |from, to| Fault::Ends {
        from: NodeIndex(from),
        to: NodeIndex(to),
    };
    let other: JobId = "8.server".parse().unwrap();
    let of_other = Place {
        job: other.clone(),
        ..place(0)
    };
    let of_other_list = Place {
        list: 1,
        ..place(0)
    };
    let wider = Place {
        nodes: 9,
        ..place(8)
    };
    let same = place(1);
    for (bytes, fault) in [
        (hello(of_other, 1), Fault::Job(other)),
        (hello(of_other_list, 1), Fault::Job(7.into())),
        (hello(place(0), 2), ends(0, 2)),
        // No node of this job, as this end knows it.
        (hello(wider, 1), ends(8, 1)),
    ] {
        let mut called = Side::responder(same.clone(), 2, Settings::default());
        assert!(called.hear(&bytes.unwrap()).is_empty());
        assert_eq!(called.fault, Some(fault));
    }
    // What cannot be is not tried.
    for (own, peer) in [(0, 0), (0, 4), (4, 0)] {
        assert_eq!(hello(place(own), peer).unwrap_err(), ends(own, peer));
    }
    // Node 2 answers where node 1 was called.
    let (mut caller, hello) = Side::initiator(1, Settings::default());
    let good = ROOT.open(&hello[4..]).unwrap().payload;
    let mut to_two = good.clone();
    // From and to stand behind context, version, role, nonce and list.
    to_two[11 + 2 + 1 + 32 + 4 + 2] = 2;
    let credential = ROOT.seal(&to_two).unwrap();
    let mut bytes = (credential.len() as u32).to_le_bytes().to_vec();
    bytes.extend(credential);
    let mut two = Side::responder(place(2), 2, Settings::default());
    let answer = two.hear(&bytes);
    assert!(!answer.is_empty() && caller.hear(&answer).is_empty());
    assert_eq!(caller.fault, Some(ends(2, 0)));
}

#[test]
fn munge_that_is_away_is_told() {
    struct Away;
    impl Credentials for Away {
        fn seal(&self, _: &[u8]) -> Result<Vec<u8>, Refusal> {
            Err(Refusal::Absent("munged does not answer".into()))
        }
        fn open(&self, _: &[u8]) -> Result<Opened, Refusal> {
            Err(Refusal::Absent("munged does not answer".into()))
        }
    }
    let settings = Settings::default();
    let started = Handshake::initiate(place(0), NodeIndex(1), [1; 32], settings, &Away);
    let fault = started.unwrap_err();
    assert!(matches!(&fault, Fault::Seal(Refusal::Absent(_))));
    assert!(fault.to_string().contains("munged does not answer"));
    let (_, hello) = Side::initiator(1, settings);
    let mut called = Handshake::respond(Arc::new(place(1)), [2; 32], settings);
    let fault = called.feed(&hello, &Away).unwrap_err();
    assert!(matches!(fault, Fault::Open(Refusal::Absent(_))));
}

#[test]
fn a_credential_over_the_bound_is_not_sent() {
    let long = Fake {
        slack: MAX_HANDSHAKE,
        ..ROOT
    };
    let settings = Settings::default();
    let started = Handshake::initiate(place(0), NodeIndex(1), [1; 32], settings, &long);
    assert!(matches!(
        started.unwrap_err(),
        Fault::Length {
            limit: MAX_HANDSHAKE,
            ..
        }
    ));
}

#[test]
fn keys_differ_from_session_to_session_and_by_direction() {
    let (mut one, two) = sessions();
    let (other, _, _) = shake([1, 3], |_, bytes| bytes);
    let mut macs = vec![one.sealer.seal(Kind::Data, b"x").unwrap().mac];
    for mut sealer in [two.sealer, other.session.unwrap().sealer] {
        macs.push(sealer.seal(Kind::Data, b"x").unwrap().mac);
    }
    macs.sort_unstable();
    macs.dedup();
    assert_eq!(macs.len(), 3);
}
