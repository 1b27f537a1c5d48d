//! Requests of several steps: dependencies, holds, changes, moves, preemption, reservations, released hosts, starts by an operator.

use gpuos_model::rng::Rng;

use super::ask::{Request, Step, USERS, select};
use super::release::{LAST, release};
use super::site::{MODELS, QUEUES, Site, one_of, pick};

use Step::{Cycle, Ended, Look, Until};

type Make = fn(&mut Rng, &Site) -> Request;

/// All kinds.
const KINDS: [Make; 15] = [
    after_another,
    held,
    altered,
    moved,
    preempting,
    preempting,
    released,
    by_an_operator,
    in_a_reservation,
    before_a_reservation,
    rerun,
    suspended,
    several_users,
    alone_on_a_host,
    offline,
];

/// One of them.
pub fn of(rng: &mut Rng, site: &Site) -> Request {
    pick(rng, &KINDS)(rng, site)
}

fn steps(steps: Vec<Step>) -> Request {
    let undo = Vec::new();
    Request { steps, undo }
}

/// A request that most hosts can have.
fn small(rng: &mut Rng) -> String {
    let (ncpus, ngpus) = (1 + rng.below(3), rng.below(4));
    format!("-l select=1:ncpus={ncpus}:ngpus={ngpus}")
}

fn after_another(rng: &mut Rng, site: &Site) -> Request {
    let exits = Some(rng.below(2) as u8);
    let kind = pick(
        rng,
        &["afterok", "afterok", "afterany", "afternotok", "beforeany"],
    );
    let first = Step::Submit {
        user: "user1",
        options: small(rng),
        exits,
    };
    let next = format!("-W depend={kind}:{{0}} {}", select(rng, site));
    steps(vec![
        first,
        Step::submit("user1", next),
        Cycle,
        Ended(0),
        Look,
    ])
}

fn held(rng: &mut Rng, site: &Site) -> Request {
    let submit = Step::submit("user1", format!("-h {}", select(rng, site)));
    let by = pick(rng, &["user1", "root"]);
    steps(vec![submit, Look, Step::tell(by, "qrls {0}"), Look])
}

fn altered(rng: &mut Rng, site: &Site) -> Request {
    let submit = Step::submit("user2", format!("-h {}", select(rng, site)));
    let change = match rng.below(6) {
        0 => "-l walltime=00:20:00".into(),
        1 => format!("-l ngpus={}", rng.below(9)),
        2 => format!("-l place={}", pick(rng, &["scatter", "pack", "excl"])),
        3 => format!("-l select=1:ngpus=1:gmodel={}", pick(rng, &MODELS)),
        _ => select(rng, site),
    };
    let alter = Step::tell("user2", format!("qalter {change} {{0}}"));
    let mut all = vec![submit, alter, Step::tell("user2", "qrls {0}"), Look];
    // Of a job that runs few things can be changed.
    if rng.below(3) == 0 {
        let change = pick(
            rng,
            &["-l walltime=5:00:00", "-l ngpus=1", "-l select=2:ngpus=1"],
        );
        all.push(Step::tell("root", format!("qalter {change} {{0}}")));
        all.push(Look);
    }
    steps(all)
}

fn moved(rng: &mut Rng, site: &Site) -> Request {
    let submit = Step::submit("user1", format!("-q stopped {}", select(rng, site)));
    let to = pick(rng, &QUEUES);
    steps(vec![
        submit,
        Look,
        Step::tell("user1", format!("qmove {to} {{0}}")),
        Look,
    ])
}

/// Something that fills the hosts, and what goes before it.
fn preempting(rng: &mut Rng, site: &Site) -> Request {
    let ngpus = 5 + rng.below(4);
    let fill = format!("-l select=1:ncpus=2:ngpus={ngpus}");
    let rerunnable = pick(rng, &["y", "y", "n"]);
    let mut all = vec![
        Step::submit("user1", format!("-r {rerunnable} {fill}")),
        Step::submit("user1", format!("-r {rerunnable} {fill}")),
        Step::submit(
            "user2",
            format!("-l select=2:ncpus=1:ngpus={ngpus} -l place=scatter"),
        ),
        Look,
    ];
    all.push(Step::submit(
        "user2",
        format!("-q express {}", select(rng, site)),
    ));
    all.push(Look);
    all.push(Step::tell("root", "qdel {3}"));
    all.push(Until("! qselect | grep -qx {3}".into()));
    all.push(Look);
    steps(all)
}

fn released(rng: &mut Rng, site: &Site) -> Request {
    let ngpus = 1 + rng.below(6);
    let keep = pick(rng, &[LAST, LAST, "-a", "-k 1", "-k select=1:ncpus=1"]);
    let count = if keep == "-a" || keep == LAST {
        2 + rng.below(2)
    } else {
        3
    };
    let spread = format!("-l select={count}:ncpus=1:ngpus={ngpus} -l place=scatter");
    let next = match rng.below(2) {
        // All hosts that it never had, and one that it gives back.
        0 => format!("-l select={}:ncpus=1:ngpus=8 -l place=scatter", 5 - count),
        _ => select(rng, site),
    };
    release(count, keep, &spread, next)
}

fn by_an_operator(rng: &mut Rng, site: &Site) -> Request {
    let host = one_of(rng, &site.hosts);
    let ngpus = 1 + rng.below(4);
    let vnode = one_of(rng, &host.vnodes()).clone();
    let run = match rng.below(3) {
        0 => format!("qrun -H '({vnode}:ncpus=1:ngpus={ngpus})' {{0}}"),
        1 => format!("qrun -H {vnode} {{0}}"),
        _ => "qrun {0}".into(),
    };
    let queue = pick(rng, &["stopped", "workq"]);
    steps(vec![
        Step::submit(
            "user1",
            format!("-q {queue} -l select=1:ncpus=1:ngpus={ngpus}"),
        ),
        Step::tell("root", run),
        Look,
    ])
}

fn in_a_reservation(rng: &mut Rng, site: &Site) -> Request {
    let reserve = Step::Reserve {
        user: "user1",
        starts: 3,
        options: format!("-D 0:30:00 {}", select(rng, site)),
    };
    let user = pick(rng, &USERS);
    steps(vec![
        reserve,
        Look,
        Until("! pbs_rstat -f {R}.head | grep -q 'reserve_state = RESV_CONFIRMED'".into()),
        Step::submit(user, format!("-q {{R}} {}", small(rng))),
        Step::submit("user1", format!("-q {{R}} {}", select(rng, site))),
        Step::submit("user2", select(rng, site)),
        Look,
    ])
}

fn before_a_reservation(rng: &mut Rng, site: &Site) -> Request {
    let ngpus = 1 + rng.below(8);
    let reserve = Step::Reserve {
        user: "user2",
        starts: 3000,
        options: format!("-D 1:00:00 -l select=4:ncpus=1:ngpus={ngpus} -l place=scatter"),
    };
    let walltime = pick(rng, &["0:10:00", "2:00:00"]);
    steps(vec![
        reserve,
        Look,
        Step::submit(
            "user1",
            format!("-l walltime={walltime} {}", select(rng, site)),
        ),
        Look,
    ])
}

fn rerun(rng: &mut Rng, site: &Site) -> Request {
    steps(vec![
        Step::submit("user1", select(rng, site)),
        Look,
        Step::tell("root", "qrerun {0}"),
        Until("! qstat -f {0} | grep -q 'job_state = R'".into()),
        Look,
    ])
}

fn suspended(rng: &mut Rng, site: &Site) -> Request {
    let host = &one_of(rng, &site.hosts).name;
    let ngpus = 3 + rng.below(6);
    let there = format!("-l select=1:ncpus=1:ngpus={ngpus}:host={host}");
    steps(vec![
        Step::submit("user1", there.clone()),
        Look,
        Step::tell("root", "qsig -s suspend {0}"),
        Step::submit("user2", there),
        Look,
        Step::tell("root", "qsig -s resume {0}"),
        Look,
    ])
}

fn several_users(rng: &mut Rng, site: &Site) -> Request {
    let mut all = Vec::new();
    for at in 0..3 + rng.below(4) {
        let priority = rng.below(3) * 100;
        let words = if at == 1 {
            select(rng, site)
        } else {
            small(rng)
        };
        all.push(Step::submit(
            pick(rng, &USERS),
            format!("-p {priority} {words}"),
        ));
    }
    all.push(Look);
    steps(all)
}

fn alone_on_a_host(rng: &mut Rng, site: &Site) -> Request {
    let host = one_of(rng, &site.hosts);
    let (name, queue) = (&host.name, host.queue.unwrap_or("workq"));
    let place = pick(rng, &["excl", "exclhost", "pack:excl", "shared"]);
    let ngpus = rng.below(3);
    steps(vec![
        Step::submit(
            "user1",
            format!("-q {queue} -l select=1:ncpus=1:ngpus={ngpus}:host={name} -l place={place}"),
        ),
        Look,
        Step::submit(
            "user2",
            format!("-q {queue} -l select=1:ncpus=1:host={name}"),
        ),
        Look,
    ])
}

fn offline(rng: &mut Rng, site: &Site) -> Request {
    let host = &one_of(rng, &site.hosts);
    let vnodes = host.vnodes().join(" ");
    let there = format!("-l select=1:ncpus=1:ngpus=1:host={}", host.name);
    let mut all = vec![
        Step::tell("root", format!("pbsnodes -o {vnodes}")),
        Step::submit("user1", there),
        Step::submit("user2", select(rng, site)),
        Look,
        Step::tell("root", format!("pbsnodes -r {vnodes}")),
        Look,
    ];
    if rng.below(2) == 0 {
        // With jobs on it.
        let again = format!("pbsnodes -o {vnodes}");
        all.extend([Step::tell("root", again), Look]);
    }
    Request {
        steps: all,
        undo: vec![format!("pbsnodes -r {vnodes}")],
    }
}
