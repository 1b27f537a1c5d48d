//! Cases that were found from outside on a PBS where each GPU was a vnode of its own.

use gpuos_model::rng::Rng;

use super::ask::{Request, State, Step};
use super::release::{LAST, release};
use super::site::{GPUS, Site};

/// Four hosts that are alike, one of them bound to a queue.
pub fn site() -> Site {
    let mut site = Site::of(&mut Rng::new(1));
    site.settings = super::site::queues();
    site.sched_config.truncate(1);
    (site.running_at_install, site.labels_after_install) = (false, true);
    for (at, host) in site.hosts.iter_mut().enumerate() {
        (host.ncpus, host.ngpus, host.split) = (16, GPUS, false);
        host.queue = (at == 2).then_some("big");
        let label = |text: &str| format!("resources_available.{text}");
        host.labels = ["gmodel = h100", "ib = True", "rack = r1"]
            .map(label)
            .into();
    }
    site
}

/// What is asked for there.
pub fn states() -> Vec<State> {
    let one = |options: &str| Request::one("user1", options.into());
    let mut idle = [
        "-l select=1:ngpus=1:gmodel=h100",
        "-l select=1:ngpus=1:ib=true",
        "-l select=1:ngpus=1:arch=linux",
        "-q big -l select=1:ngpus=1",
        "-q big -l select=1:ncpus=16",
        "-l select=25:ngpus=1",
        "-J 1-40 -l select=1:ncpus=1",
        "-l select=3:ncpus=1:ngpus=8 -l place=scatter",
        "-l nodes=2:ppn=4",
        "-l ngpus=2 -l ncpus=4",
    ]
    .map(one)
    .to_vec();
    idle.push(Request {
        steps: vec![
            Step::submit("user1", "-l select=1:ngpus=1:host=n1 -l place=excl"),
            Step::Look,
            Step::submit("user2", "-l select=1:ncpus=1:host=n1"),
            Step::Look,
        ],
        undo: Vec::new(),
    });
    let spread = "-l select=3:ncpus=1:ngpus=6 -l place=scatter";
    idle.push(release(3, LAST, spread, "-l select=1:ngpus=8".into()));
    vec![State {
        made_by: Request::default(),
        requests: idle,
    }]
}
