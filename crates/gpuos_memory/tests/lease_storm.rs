//! A thousand moves that are asked for at once, and a program that waits for one now and then.

use std::collections::BTreeMap;

use gpuos_memory::lease::{
    Broker, ClientId, Config, Effect, GpuId, Input, JobId, JobSpec, LinkId, MoveId, Supply,
};
use gpuos_memory::link::Why;
use gpuos_model::rng::Rng;

use crate::lease_support::GIB;

const CLIENTS: u64 = 25;
/// A GiB over the link, in ms.
const TOOK: u64 = 40;
const LINK: LinkId = LinkId::Gpu(GpuId(0));

fn broker(config: &Config) -> Broker {
    let mut broker = Broker::new(config.clone());
    broker.step(
        0,
        Input::Supply(Supply {
            gpus: vec![(GpuId(0), 80 * GIB)],
            host: 400 * GIB,
            nvme: 0,
            nvme_counted: 0,
        }),
    );
    for id in 0..=CLIENTS {
        broker.step(
            0,
            Input::Job(JobSpec {
                job: JobId(id),
                gpus: vec![GpuId(0)],
                hbm_per_gpu: GIB,
                host: GIB,
                nvme: 0,
                bytes_per_gpu: GIB,
                timeslice: false,
                account: None,
                rank: 0,
                guaranteed: 0,
            }),
        );
        broker.step(
            0,
            Input::Ask {
                client: ClientId(id),
                job: JobId(id),
                gpu: GpuId(0),
                bytes: GIB,
            },
        );
    }
    broker
}

/// How long each of so many moves on demand waited until it was done, and how many others began in a second.
fn waits(storm: u64, times: usize) -> (Vec<u64>, u64) {
    let config = Config::default();
    let mut broker = broker(&config);
    let mut rng = Rng::new(3);
    let (mut now, mut next, mut free_at) = (0, 0, 0);
    // When a move ends; moves on demand have even numbers.
    let mut ends: BTreeMap<(u64, u64), ()> = BTreeMap::new();
    let (mut waits, mut begun) = (Vec::new(), 0);
    let (mut since, mut demand_at) = (None, 100);
    let wish = |id: u64, client: u64, why: Why| Input::Move {
        id: MoveId(id),
        client: ClientId(client),
        link: LINK,
        bytes: GIB,
        why,
    };
    let mut effects = Vec::new();
    for _ in 0..storm {
        next += 1;
        effects.extend(broker.step(now, wish(2 * next + 1, 1 + next % CLIENTS, Why::Ahead)));
    }
    while waits.len() < times {
        for effect in effects.drain(..) {
            if let Effect::Move(MoveId(id)) = effect {
                free_at = now.max(free_at) + TOOK;
                begun += id % 2;
                ends.insert((free_at, id), ());
            }
        }
        let end = ends.keys().next().copied();
        let tick = (now / 10 + 1) * 10;
        let soon = end.map_or(tick, |it| it.0.min(tick));
        now = if since.is_none() {
            soon.min(demand_at.max(now))
        } else {
            soon
        };
        match end {
            Some((at, id)) if at <= now => {
                ends.remove(&(at, id));
                effects.extend(broker.step(now, Input::Moved(MoveId(id))));
                if id % 2 == 0 {
                    waits.push(now - since.take().expect("it waits"));
                    demand_at = now + 20 + rng.below(100);
                } else {
                    // The storm does not end.
                    next += 1;
                    let again = wish(2 * next + 1, 1 + next % CLIENTS, Why::Ahead);
                    effects.extend(broker.step(now, again));
                }
            }
            _ if since.is_none() && demand_at <= now => {
                next += 1;
                since = Some(now);
                effects.extend(broker.step(now, wish(2 * next, 0, Why::Demand)));
            }
            _ => effects.extend(broker.step(now, Input::Tick)),
        }
    }
    waits.sort_unstable();
    (waits, begun * 1000 / now)
}

#[test]
fn a_storm_of_a_thousand_moves_leaves_who_waits_within_twice_of_idle() {
    let (idle, none) = waits(0, 2000);
    let (storm, ahead) = waits(1000, 2000);
    let p99 = |waits: &[u64]| waits[waits.len() * 99 / 100];
    eprintln!(
        "p99 {} and {} ms, {ahead} a second beside it",
        p99(&idle),
        p99(&storm)
    );
    assert_eq!((p99(&idle), none), (TOOK, 0));
    assert!(p99(&storm) <= 2 * p99(&idle));
    // The storm has its budget, 8 GB a second, and no more.
    assert!((5..=8).contains(&ahead), "{ahead}");
}

#[test]
fn moves_of_the_dead_and_of_strangers_do_not_begin() {
    let mut broker = broker(&Config::default());
    let wish = |id: u64, client: u64| Input::Move {
        id: MoveId(id),
        client: ClientId(client),
        link: LINK,
        bytes: GIB,
        why: Why::Demand,
    };
    assert_eq!(broker.step(1, wish(1, 99)), [Effect::NoMove(MoveId(1))]);
    assert_eq!(broker.step(1, wish(2, 1)), [Effect::Move(MoveId(2))]);
    assert_eq!(broker.step(1, wish(3, 1)), [Effect::Move(MoveId(3))]);
    // Two at once are what the link takes.
    assert_eq!(broker.step(1, wish(4, 1)), []);
    assert_eq!(broker.step(1, wish(5, 2)), []);
    // All of the first one go with it, and the next one's begins.
    let effects = broker.step(2, Input::Gone(ClientId(1)));
    assert!(effects.contains(&Effect::Move(MoveId(5))), "{effects:?}");
    assert!(!effects.contains(&Effect::Move(MoveId(4))), "{effects:?}");
    // What is asked for without end is bounded.
    let mut refused = 0;
    for id in 100..3000 {
        let effects = broker.step(3, wish(id, 3));
        refused += effects
            .iter()
            .filter(|it| matches!(it, Effect::NoMove(_)))
            .count();
    }
    assert!(refused > 1800, "{refused}");
}
