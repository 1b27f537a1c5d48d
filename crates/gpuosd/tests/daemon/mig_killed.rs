//! gpuosd dies at any moment while it makes or destroys the instances of a job.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::mig::*;

/// Kills gpuosd so long after a step has asked, or after its job has gone.
fn killed_at(delay: Duration, release: bool) {
    let site = pool("");
    job(&site, 7, "0-3,8", ("gpuos: mig=3g.40gb:1,1g.10gb:1", ""));
    let slices = [0, 1, 2, 3, 8];
    let daemon = start_slow(&site);
    until_status(&site, &daemon, "the first look", |gpu| gpu.ready);
    let mut client = daemon.client();
    if release {
        client.ask(&request(7, BATCH, "1g.10gb", &slices)).unwrap();
        gone(&site, 7);
        end(&daemon, 7, BATCH);
        thread::sleep(delay);
    } else {
        let asks = thread::spawn(move || drop(client.ask(&request(7, BATCH, "1g.10gb", &slices))));
        thread::sleep(delay);
        daemon.kill();
        asks.join().unwrap();
        let daemon = start(&site);
        let own = step(&daemon, 7, BATCH, ("1g.10gb", &slices)).unwrap();
        assert_eq!(own["GPUOS_MIG_PLACEMENTS"], "4:0-3,5:0-0", "{delay:?}");
        assert_eq!(instances(&site, 4), [(G3, 0, true)], "{delay:?}");
        assert_eq!(instances(&site, 5), [(G1, 0, true)], "{delay:?}");
        gone(&site, 7);
        end(&daemon, 7, BATCH);
        until_empty(&site, 4);
        until_empty(&site, 5);
        return;
    }
    daemon.kill();
    let daemon = start(&site);
    until_empty(&site, 4);
    until_empty(&site, 5);
    // No slice is lost: the whole GPU can be had.
    job(&site, 8, "0-7", ("gpuos: mig=7g.80gb:1", ""));
    step(&daemon, 8, BATCH, ("7g.80gb", &[0, 1, 2, 3, 4, 5, 6, 7])).unwrap();
}

#[test]
fn killed_while_it_makes_instances_gpuosd_finishes_them_and_leaks_none() {
    let delays: BTreeSet<u64> = (0..20).map(|at| at * 35).collect();
    for delay in delays {
        killed_at(Duration::from_millis(delay), false);
    }
}

#[test]
fn killed_while_it_destroys_instances_gpuosd_goes_on() {
    for at in 0..14 {
        killed_at(Duration::from_millis(at * 250), true);
    }
}
