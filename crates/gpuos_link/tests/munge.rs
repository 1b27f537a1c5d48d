//! Links by munge's credentials: those of the stand-in in memory, and the real ones.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_host::munge::{self, MAX_CREDENTIAL, Twin};
use gpuos_link::munge::Munge;
use gpuos_link::session::{Credentials, Fault, MAX_HANDSHAKE, Place, Refusal, Settings};
use gpuos_link::tcp::{Error, Listener, Options, connect};

use crate::munged::{Daemon, munged};
use crate::sockets::{LONG, options};
use crate::support::place;

/// Messages of one end reach the other, whose credentials these are.
fn speaks(caller: &Munge, called: &Munge, options: &Options) {
    // The longest id that a job may have.
    let long = |own| Place {
        job: "j".repeat(255).parse().unwrap(),
        ..place(own)
    };
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let credentials = Arc::new(called.clone());
    let listener =
        Listener::start(socket, Arc::new(long(1)), credentials, options.clone()).unwrap();
    let one = connect(listener.address(), long(0), NodeIndex(1), caller, options).unwrap();
    let mut two = listener.accept(LONG).unwrap();
    assert_eq!(two.peer.node, NodeIndex(0));
    one.sender.try_send(b"piece".to_vec()).unwrap();
    assert_eq!(two.receiver.recv(), Ok(Some(b"piece".to_vec())));
}

#[test]
fn the_twin_opens_what_root_of_the_cluster_sealed() {
    const { assert!(MAX_CREDENTIAL <= MAX_HANDSHAKE) };
    let (one, two) = (Twin::new(1, 0), Twin::new(1, 0).other(0));
    speaks(&Munge(Arc::new(one)), &Munge(Arc::new(two)), &options());
    let munge = Munge(Arc::new(Twin::new(1, 5)));
    let credential = munge.seal(b"x").unwrap();
    assert_eq!(munge.open(&credential).unwrap().uid, 5);
    for bad in [&b"no credential"[..], b"", &credential] {
        assert!(matches!(munge.open(bad), Err(Refusal::Refused(_))));
    }
    let away = Twin::new(1, 0);
    away.set_stopped(true);
    assert!(matches!(
        Munge(Arc::new(away)).seal(b"x"),
        Err(Refusal::Absent(_))
    ));
}

#[test]
fn two_nodes_with_the_real_munge_speak_and_a_foreign_one_does_not() {
    let (Some(one), Some(two), Some(foreign)) = (munged(1), munged(1), munged(2)) else {
        eprintln!("SKIPPED: there is no munged on PATH");
        return;
    };
    let open = |socket: &Path| munge::Munge::open(None, Some(socket));
    let open = |daemon: &Daemon| Munge(Arc::new(open(&daemon.socket()).unwrap()));
    let lab = Options {
        settings: Settings {
            own_uid: Some(rustix::process::geteuid().as_raw()),
            ..Settings::default()
        },
        ..options()
    };
    speaks(&open(&one), &open(&two), &lab);
    // Both ends on one node, as in a lab.
    speaks(&open(&one), &open(&one), &lab);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let credentials = Arc::new(open(&one));
    let listener = Listener::start(socket, Arc::new(place(1)), credentials, lab.clone()).unwrap();
    let link = connect(
        listener.address(),
        place(0),
        NodeIndex(1),
        &open(&foreign),
        &lab,
    );
    assert_eq!(link.err(), Some(Error::TurnedAway));
    let mut failures = listener.failures();
    while failures.count == 0 {
        std::thread::yield_now();
        failures = listener.failures();
    }
    assert!(matches!(
        failures.last[0].1,
        Error::Fault(Fault::Open(Refusal::Refused(_)))
    ));
}
