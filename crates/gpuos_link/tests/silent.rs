//! A node that is gone without a word: the network takes what is sent and brings nothing back.

use std::process::Command;
use std::time::Duration;

use gpuos_link::tcp::{Error, Options};

use crate::sockets::{LONG, link, listen, options};

/// Says that this process has a network of its own, which can be cut.
const OWN_NETWORK: &str = "GPUOS_TEST_OWN_NETWORK";

fn ip(args: &[&str]) -> bool {
    let done = Command::new("ip").args(args).output();
    done.is_ok_and(|done| done.status.success())
}

#[test]
fn a_link_ends_where_nothing_is_acknowledged() {
    if std::env::var_os(OWN_NETWORK).is_none() {
        let able = Command::new("unshare")
            .args(["--net", "ip", "link", "set", "lo", "up"])
            .output();
        if !able.is_ok_and(|able| able.status.success()) {
            eprintln!("skipped: it needs root, unshare and ip");
            return;
        }
        let own = std::env::current_exe().unwrap();
        let test = "silent::a_link_ends_where_nothing_is_acknowledged";
        let done = Command::new("unshare")
            .arg("--net")
            .arg(own)
            .args(["--exact", test, "--nocapture"])
            .env(OWN_NETWORK, "1")
            .status();
        return assert!(done.unwrap().success());
    }
    assert!(ip(&["link", "set", "lo", "up"]));
    let limits = Options {
        unacknowledged: Duration::from_secs(3),
        ..options()
    };
    let listener = listen(&limits);
    // One side has something to send, and the other one has not.
    let (mut idle, mut sends) = link(&listener, &limits);
    sends.sender.send(vec![1; 9], LONG).unwrap();
    assert_eq!(idle.receiver.recv().unwrap(), Some(vec![1; 9]));
    assert!(ip(&["link", "set", "lo", "down"]));
    sends.sender.send(vec![2; 9], LONG).unwrap();
    for half in [&mut idle, &mut sends] {
        let error = half.receiver.recv().unwrap_err();
        assert!(matches!(error, Error::Gone(_)), "{error}");
    }
}
