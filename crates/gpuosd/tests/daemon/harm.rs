//! What must do no harm: a daemon that is killed, a disk that is full, a slurmctld that is away, a library
//! that hangs, files that are damaged, and clients that talk nonsense.

use std::fs;
use std::io::{Read, Write};
use std::thread::sleep;
use std::time::Duration;

use gpuos_core::health::Verb;
use gpuos_core::wire::{Reply, Request};
use proptest::test_runner::{Config, TestRunner};

use crate::site::{Site, mount, unmount};

#[test]
fn what_was_said_outlives_kill_9_at_any_moment() {
    let site = Site::new();
    let mut wanted = Vec::new();
    for round in 0..8u64 {
        let daemon = site.start();
        daemon.ready();
        for gpu in &wanted {
            let state = daemon.state(usize::from(*gpu));
            assert!(
                ["draining", "drained"].contains(&&state[..]),
                "round {round}: {state}"
            );
        }
        let gpu = round as u8;
        daemon.admin(Verb::Drain, gpu);
        wanted.push(gpu);
        // Anywhere between the answer and what follows from it.
        sleep(Duration::from_millis(round * 37 % 200));
        daemon.kill();
    }
    let daemon = site.start();
    daemon.ready();
    site.until("Extra", || {
        site.slurm("extra")
            .contains("out=0,1,2,3,4,5,6,7")
            .then_some(())
    });
    let audit = gpuosd::audit::tail(&site.path("state"), 500).unwrap();
    assert!(
        audit
            .iter()
            .filter(|line| line.contains("\"uid\":0"))
            .count()
            >= 8,
        "{audit:?}"
    );
}

#[test]
fn a_damaged_state_is_kept_aside_and_no_drain_is_lost() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    daemon.admin(Verb::Drain, 6);
    site.until("Extra", || {
        site.slurm("extra").contains("out=6").then_some(())
    });
    daemon.kill();
    let path = site.path("state/state");
    let bytes = fs::read(&path).unwrap();
    for (number, damage) in [0usize, 1, 2].into_iter().enumerate() {
        let mut bad = bytes.clone();
        match damage {
            0 => bad.truncate(bytes.len() / 3),
            1 => bad[bytes.len() / 2] ^= 4,
            _ => bad.clear(),
        }
        fs::write(&path, &bad).unwrap();
        // slurmctld is away for a while, too: what it shows must not be written over before it was read.
        site.away(true);
        let daemon = site.start();
        daemon.ready();
        let kept = site.path(&format!("state/state.damaged.{}", number + 1));
        assert_eq!(fs::read(kept).unwrap(), bad);
        site.away(false);
        site.until("GPU 6 is out", || {
            (daemon.state(6) == "drained").then_some(())
        });
        assert!(
            site.slurm("extra").contains("out=6"),
            "{}",
            site.slurm("extra")
        );
        assert!(!daemon.status().gpus[6].reason.is_empty());
        daemon.kill();
    }
}

#[test]
fn a_slurmctld_that_is_away_is_told_when_it_is_back() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    site.until("jobs", || {
        site.slurm("log").contains("squeue").then_some(())
    });
    site.away(true);
    daemon.admin(Verb::Offline, 1);
    site.until("a trouble", || {
        (!daemon.status().daemon.troubles.is_empty()).then_some(())
    });
    assert_eq!(site.slurm("extra"), "rack=7");
    daemon.kill();
    let daemon = site.start();
    daemon.ready();
    assert_eq!(daemon.state(1), "offline");
    site.away(false);
    site.until("Extra", || {
        (site.slurm("extra") == "rack=7 [gpuos:1 out=1]").then_some(())
    });
    site.until("no trouble", || {
        daemon.status().daemon.troubles.is_empty().then_some(())
    });
}

#[test]
fn a_library_that_hangs_holds_up_nobody_else() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    site.fault(None, "hang 30");
    let silent = || {
        site.log()
            .contains("does not answer; nothing is reset")
            .then_some(())
    };
    site.until("silence", silent);
    let told = daemon.status().daemon.troubles;
    assert!(
        told.iter().any(|why| why.contains("is from before")),
        "{told:?}"
    );
    daemon.admin(Verb::Drain, 3);
    site.until("Extra", || {
        site.slurm("extra").contains("out=3").then_some(())
    });
    site.until("the library", || {
        site.log().contains("library answers again").then_some(())
    });
    site.until("no trouble", || {
        daemon.status().daemon.troubles.is_empty().then_some(())
    });
    assert_eq!(
        site.slurm("state").trim(),
        "IDLE",
        "a node is not drained for half a minute"
    );
}

#[test]
fn without_a_library_the_daemon_waits_for_one() {
    let site = Site::new();
    let gpus = site.path("gpus");
    fs::rename(&gpus, site.path("hidden")).unwrap();
    let daemon = site.start();
    let trouble = || {
        daemon
            .status()
            .daemon
            .troubles
            .iter()
            .any(|told| told.contains("driver"))
            .then_some(())
    };
    site.until("a trouble", trouble);
    fs::rename(site.path("hidden"), &gpus).unwrap();
    daemon.ready();
    site.until("no trouble", || {
        daemon.status().daemon.troubles.is_empty().then_some(())
    });
}

#[test]
fn a_full_disk_is_said_and_nothing_is_lost_once_there_is_room() {
    let site = Site::new();
    let folder = site.path("state");
    if !mount(&folder, "256k") {
        eprintln!("skipped: a full disk: this needs root and a mount");
        return;
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let daemon = site.start();
        daemon.ready();
        daemon.admin(Verb::Drain, 1);
        // What is written until then would leave room again.
        site.until("Extra", || {
            site.slurm("extra").contains("out=1").then_some(())
        });
        let mut ballast = fs::File::create(folder.join("ballast")).unwrap();
        while ballast.write_all(&[0; 4096]).is_ok() {}
        let said = daemon.admin(Verb::Drain, 4);
        assert!(said.contains("could not be saved"), "{said}");
        site.until("a trouble", || {
            (!daemon.status().daemon.troubles.is_empty()).then_some(())
        });
        site.until("Extra", || {
            site.slurm("extra").contains("out=1,4").then_some(())
        });
        drop(ballast);
        fs::remove_file(folder.join("ballast")).unwrap();
        site.until("no trouble", || {
            daemon.status().daemon.troubles.is_empty().then_some(())
        });
        daemon.kill();
        let daemon = site.start();
        daemon.ready();
        assert_eq!(
            (daemon.state(1), daemon.state(4)),
            ("drained".into(), "drained".into())
        );
    }));
    unmount(&folder);
    outcome.unwrap();
}

#[test]
fn a_socket_that_cannot_be_made_or_goes_away_is_made_later() {
    let site = Site::new();
    fs::write(site.path("run"), "in the way").unwrap();
    let mut daemon = site.start();
    site.until("a message", || {
        site.log().contains("no socket").then_some(())
    });
    assert!(daemon.lives());
    fs::remove_file(site.path("run")).unwrap();
    daemon.ready();
    fs::remove_file(daemon.socket()).unwrap();
    daemon.ready();
    // A second one finds the place taken.
    let mut second = site.start();
    site.until("the second ends", || (!second.lives()).then_some(()));
    assert!(
        site.log().contains("another daemon listens"),
        "{}",
        site.log()
    );
    daemon.ready();
}

#[test]
fn nonsense_on_the_socket_changes_nothing() {
    let site = Site::new();
    let mut daemon = site.start();
    daemon.ready();
    let before = daemon.status();
    let words = [
        "{",
        "}",
        "[",
        "\"ask\"",
        ":",
        ",",
        "\"hello\"",
        "\"protocol\"",
        "1",
        "\"status\"",
        "\"admin\"",
        "\"verb\"",
        "\"drain\"",
        "\"gpus\"",
        "[300]",
        "-1",
        "\n",
        "\u{0}",
        "null",
        "1e999",
        "\"\\ud800\"",
    ];
    let mut runner = TestRunner::new_with_rng(
        Config {
            cases: 150,
            failure_persistence: None,
            ..Config::default()
        },
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let input = proptest::collection::vec(0..words.len() + 40, 1..80);
    let run = runner.run(&input, |picks| {
        let mut bytes = b"{\"ask\":\"hello\",\"protocol\":1,\"client\":\"x\"}\n".to_vec();
        for pick in picks {
            match words.get(pick) {
                Some(word) => bytes.extend_from_slice(word.as_bytes()),
                None => bytes.push((pick * 37 % 256) as u8),
            }
        }
        let mut stream = daemon.raw();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Ok(())
    });
    run.unwrap();
    // One that never ends its line is cut off.
    let mut stream = daemon.raw();
    while stream.write_all(&[b'x'; 4096]).is_ok() {}
    assert!(daemon.lives());
    let after = daemon.status();
    let states = |status: &gpuos_core::wire::Status| -> Vec<String> {
        status.gpus.iter().map(|gpu| gpu.state.clone()).collect()
    };
    assert_eq!(states(&before), states(&after));
    assert!(matches!(
        daemon.ask(&Request::Audit {
            lines: 5,
            job: None,
        }),
        Ok(Reply::Audit { .. })
    ));
}

#[test]
fn a_daemon_that_is_killed_again_and_again_under_a_storm_of_faults() {
    let site = Site::new();
    let reset = site.resets();
    let flags = ["--reset-command", &reset];
    for gpu in 0..8 {
        site.job(10 + gpu, &gpu.to_string());
    }
    let daemon = site.start_with(&flags);
    daemon.ready();
    site.until("jobs", || (daemon.status().jobs.len() == 8).then_some(()));
    daemon.admin(Verb::Drain, 6);
    // Slow enough that none of the jobs has left before all of the faults are there.
    site.set_slurm("slow", "10");
    for gpu in [0, 1, 2, 3, 4, 5, 7] {
        site.fault(Some(gpu), "xid 48");
    }
    // Until the faults are known to a daemon that lives: events are not kept for one that does not.
    site.until("all are out", || {
        let states = daemon.status().gpus;
        states
            .iter()
            .all(|gpu| gpu.state == "draining")
            .then_some(())
    });
    daemon.kill();
    site.set_slurm("slow", "1");
    for round in 0..12u64 {
        let daemon = site.start_with(&flags);
        daemon.ready();
        let state = daemon.state(6);
        assert!(
            ["draining", "drained"].contains(&&state[..]),
            "round {round}: {state}"
        );
        sleep(Duration::from_millis(round * 541 % 1700));
        site.mend();
        daemon.kill();
    }
    fs::remove_file(site.path("slurm/slow")).unwrap();
    let daemon = site.start_with(&flags);
    site.until("all jobs but one have left", || {
        site.mend();
        let running = |id: &u32| site.slurm(&format!("jobs/{id}")).contains("RUNNING");
        (10..18).filter(running).eq([16]).then_some(())
    });
    site.until("all but the drained one are back", || {
        site.mend();
        (site.slurm("extra") == "rack=7 [gpuos:1 out=6]").then_some(())
    });
    assert_eq!(daemon.state(6), "draining", "its job runs out");
    let resets = site.slurm("resets");
    for line in resets.lines() {
        let (gpu, held) = line
            .strip_prefix("reset ")
            .unwrap()
            .split_once(": ")
            .unwrap();
        assert!(
            !held.split(' ').any(|one| one == format!("IDX:{gpu}")),
            "{resets}"
        );
    }
    assert!(!resets.contains("reset 6"), "{resets}");
}
